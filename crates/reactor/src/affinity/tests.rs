//! Tests of CPU lists and pinning.

use super::*;

#[test]
fn cpu_lists_have_the_format_of_the_configuration_file() {
    let cases: [(&str, Option<&[usize]>); 15] = [
        ("0", Some(&[0])),
        ("0,2,3", Some(&[0, 2, 3])),
        ("0,2-3", Some(&[0, 2, 3])),
        ("1-7:3,9", Some(&[1, 4, 7, 9])),
        ("0-1, 3", Some(&[0, 1, 3])),
        ("5-5", Some(&[5])),
        ("", None),
        ("3-1", None),
        ("1-3:0", None),
        ("1:2", None),
        ("+1", None),
        ("1,,2", None),
        ("a", None),
        ("1-", None),
        ("0-99999999", None),
    ];
    for (list, expected) in cases {
        assert_eq!(parse_cpu_list(list).as_deref(), expected, "{list:?}");
    }
}

#[test]
fn pinning_affects_only_the_calling_thread() {
    let before = allowed_cpus().unwrap();
    let chosen = *before.last().unwrap();
    let seen = std::thread::spawn(move || {
        pin_to_cpus(&[chosen]).unwrap();
        allowed_cpus().unwrap()
    });
    assert_eq!(seen.join().unwrap(), [chosen]);
    assert_eq!(allowed_cpus().unwrap(), before);
    assert!(pin_to_cpus(&[]).is_err());
    assert!(pin_to_cpus(&[usize::MAX]).is_err());
}

#[test]
fn lowering_the_priority_affects_only_the_calling_thread() {
    let nice = || rustix::process::getpriority_process(Some(rustix::thread::gettid())).expect("a priority");
    let before = nice();
    let stepped_back = std::thread::spawn(move || {
        lower_priority(19).expect("anybody may step back");
        nice()
    });
    assert_eq!(stepped_back.join().expect("no panic"), 19);
    assert_eq!(nice(), before, "other threads stay");
}
