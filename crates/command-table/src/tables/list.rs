//! Metadata of the group *list*. Lists, which also serve as queues.

use crate::spec::SpecialKeys;
use crate::spec::flag::{BLOCKING, DENYOOM, FAST, READONLY, WRITE};
use crate::spec::key_flag::{ACCESS, DELETE, INSERT, RO, RW, UPDATE};
use crate::spec::{CommandSpec, Group, command, double, integer, key, keys, one_of, string, token};

/// The commands of this group, by name.
pub const TABLE: &[CommandSpec] = &[
    command("blmove", 6, Group::List, "6.2.0")
        .flags(&[WRITE, DENYOOM, BLOCKING])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]), keys(2, &[RW, INSERT])])
        .complexity("O(1)")
        .summary("Moves an element between lists, waiting for one if necessary.")
        .args(&[
            key("source", 0),
            key("destination", 1),
            one_of("wherefrom", &[token("left", "LEFT"), token("right", "RIGHT")]),
            one_of("whereto", &[token("left", "LEFT"), token("right", "RIGHT")]),
            double("timeout"),
        ]),
    command("blmpop", -5, Group::List, "7.0.0")
        .flags(&[WRITE, BLOCKING])
        .keys(&[keys(2, &[RW, ACCESS, DELETE]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::Counted(2))
        .complexity("O(N+M) for N keys and M elements returned")
        .summary("Pops elements of the first list that has any, waiting if necessary.")
        .args(&[
            double("timeout"),
            integer("numkeys"),
            key("key", 0).multiple(),
            one_of("where", &[token("left", "LEFT"), token("right", "RIGHT")]),
            integer("count").with_token("COUNT").optional(),
        ]),
    command("blpop", -3, Group::List, "2.0.0")
        .flags(&[WRITE, BLOCKING])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]).with_range(-2, 1)])
        .complexity("O(N) for N keys")
        .summary("Pops the first element of a list, waiting for one if necessary.")
        .history(&[("6.0.0", "The timeout may have a fraction.")])
        .args(&[key("key", 0).multiple(), double("timeout")]),
    command("brpop", -3, Group::List, "2.0.0")
        .flags(&[WRITE, BLOCKING])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]).with_range(-2, 1)])
        .complexity("O(N) for N keys")
        .summary("Pops the last element of a list, waiting for one if necessary.")
        .history(&[("6.0.0", "The timeout may have a fraction.")])
        .args(&[key("key", 0).multiple(), double("timeout")]),
    command("brpoplpush", 4, Group::List, "2.2.0")
        .flags(&[WRITE, DENYOOM, BLOCKING])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]), keys(2, &[RW, INSERT])])
        .complexity("O(1)")
        .summary("Moves the last element to another list, waiting if necessary.")
        .history(&[("6.0.0", "The timeout may have a fraction.")])
        .args(&[key("source", 0), key("destination", 1), double("timeout")]),
    command("lindex", 3, Group::List, "1.0.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) for an element that is N places from the nearer end")
        .summary("Reads the element at an index.")
        .args(&[key("key", 0), integer("index")]),
    command("linsert", 5, Group::List, "2.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[RW, INSERT])])
        .complexity("O(N) for a pivot that is N elements from the head")
        .summary("Puts an element next to another one, before or after it.")
        .args(&[
            key("key", 0),
            one_of("where", &[token("before", "BEFORE"), token("after", "AFTER")]),
            string("pivot"),
            string("element"),
        ]),
    command("llen", 2, Group::List, "1.0.0")
        .flags(&[READONLY, FAST])
        .keys(&[keys(1, &[RO])])
        .complexity("O(1)")
        .summary("Counts the elements of a list.")
        .args(&[key("key", 0)]),
    command("lmove", 5, Group::List, "6.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]), keys(2, &[RW, INSERT])])
        .complexity("O(1)")
        .summary("Moves an element from one end of a list to one end of another.")
        .args(&[
            key("source", 0),
            key("destination", 1),
            one_of("wherefrom", &[token("left", "LEFT"), token("right", "RIGHT")]),
            one_of("whereto", &[token("left", "LEFT"), token("right", "RIGHT")]),
        ]),
    command("lmpop", -4, Group::List, "7.0.0")
        .flags(&[WRITE])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]).with_key_count(0, 1, 1)])
        .special_keys(SpecialKeys::Counted(1))
        .complexity("O(N+M) for N keys and M elements returned")
        .summary("Pops elements of the first list that has any.")
        .args(&[
            integer("numkeys"),
            key("key", 0).multiple(),
            one_of("where", &[token("left", "LEFT"), token("right", "RIGHT")]),
            integer("count").with_token("COUNT").optional(),
        ]),
    command("lpop", -2, Group::List, "1.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, ACCESS, DELETE])])
        .complexity("O(N) for N elements returned")
        .summary("Pops elements off the head of a list.")
        .history(&[("6.2.0", "Takes a count.")])
        .args(&[key("key", 0), integer("count").since("6.2.0").optional()]),
    command("lpos", -3, Group::List, "6.0.6")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(N) on average for a list of N elements; less near an end or with MAXLEN")
        .summary("Finds the indexes of elements that equal a value.")
        .args(&[
            key("key", 0),
            string("element"),
            integer("rank").with_token("RANK").optional(),
            integer("num-matches").with_token("COUNT").optional(),
            integer("len").with_token("MAXLEN").optional(),
        ]),
    command("lpush", -3, Group::List, "1.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, INSERT])])
        .complexity("O(N) to add N elements")
        .summary("Pushes elements onto the head of a list, creating it when absent.")
        .history(&[("2.4.0", "Takes more than one element.")])
        .args(&[key("key", 0), string("element").multiple()]),
    command("lpushx", -3, Group::List, "2.2.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, INSERT])])
        .complexity("O(N) to add N elements")
        .summary("Pushes elements onto the head of a list that exists.")
        .history(&[("4.0.0", "Takes more than one element.")])
        .args(&[key("key", 0), string("element").multiple()]),
    command("lrange", 4, Group::List, "1.0.0")
        .flags(&[READONLY])
        .keys(&[keys(1, &[RO, ACCESS])])
        .complexity("O(S+N) for N elements, S away from the head or the nearer end")
        .summary("Reads the elements between two indexes.")
        .args(&[key("key", 0), integer("start"), integer("stop")]),
    command("lrem", 4, Group::List, "1.0.0")
        .flags(&[WRITE])
        .keys(&[keys(1, &[RW, DELETE])])
        .complexity("O(N+M) to remove M elements from a list of N")
        .summary("Removes elements that equal a value.")
        .args(&[key("key", 0), integer("count"), string("element")]),
    command("lset", 4, Group::List, "1.0.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[RW, UPDATE])])
        .complexity("O(N) for a list of N elements; O(1) at either end")
        .summary("Replaces the element at an index.")
        .args(&[key("key", 0), integer("index"), string("element")]),
    command("ltrim", 4, Group::List, "1.0.0")
        .flags(&[WRITE])
        .keys(&[keys(1, &[RW, DELETE])])
        .complexity("O(N) to remove N elements")
        .summary("Removes all elements outside of a range of indexes.")
        .args(&[key("key", 0), integer("start"), integer("stop")]),
    command("rpop", -2, Group::List, "1.0.0")
        .flags(&[WRITE, FAST])
        .keys(&[keys(1, &[RW, ACCESS, DELETE])])
        .complexity("O(N) for N elements returned")
        .summary("Pops elements off the tail of a list.")
        .history(&[("6.2.0", "Takes a count.")])
        .args(&[key("key", 0), integer("count").since("6.2.0").optional()]),
    command("rpoplpush", 3, Group::List, "1.2.0")
        .flags(&[WRITE, DENYOOM])
        .keys(&[keys(1, &[RW, ACCESS, DELETE]), keys(2, &[RW, INSERT])])
        .complexity("O(1)")
        .summary("Moves the last element of a list to the head of another.")
        .args(&[key("source", 0), key("destination", 1)]),
    command("rpush", -3, Group::List, "1.0.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, INSERT])])
        .complexity("O(N) to add N elements")
        .summary("Pushes elements onto the tail of a list, creating it when absent.")
        .history(&[("2.4.0", "Takes more than one element.")])
        .args(&[key("key", 0), string("element").multiple()]),
    command("rpushx", -3, Group::List, "2.2.0")
        .flags(&[WRITE, DENYOOM, FAST])
        .keys(&[keys(1, &[RW, INSERT])])
        .complexity("O(N) to add N elements")
        .summary("Pushes elements onto the tail of a list that exists.")
        .history(&[("4.0.0", "Takes more than one element.")])
        .args(&[key("key", 0), string("element").multiple()]),
];
