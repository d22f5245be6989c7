//! A scenario about long commands that store their result: the result is of one moment, while other clients change the
//! sources.

use fastrand::Rng;

use super::client::StressReply;
use super::run::{ReconnectingClient, StressRun};

/// The total number of members in the two sets of each group. The smaller sets are copied if they change while a
/// command reads them. For the larger ones, writers wait. Uniting any of them takes long enough to leave a worker.
const GROUP_MEMBERS: [usize; 3] = [2000, 6000, 12_000];

fn set_key(group: usize, number: usize) -> String {
    format!("union:{group}:{number}")
}

fn member(number: usize) -> String {
    format!("member-of-a-pair:{number:08}")
}

/// Puts all members into the first set of their group.
pub fn prepare(run: &StressRun) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    for (group, members) in GROUP_MEMBERS.into_iter().enumerate() {
        let names: Vec<String> = (0..members).map(member).collect();
        for part in names.chunks(500) {
            client.execute(&format!("SADD {} {}", set_key(group, 0), part.join(" ")))?;
        }
    }
    Ok(())
}

/// Runs the scenario: half of the threads move pairs of members between the sets. The other half unite the sets and
/// read one of them.
pub fn unions(run: &StressRun, thread: usize, mut rng: Rng) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    while run.is_running() {
        let group = rng.usize(..GROUP_MEMBERS.len());
        if thread.is_multiple_of(2) {
            move_pair(&mut client, group, &mut rng)?;
        } else {
            check_union(&mut client, group, thread, &mut rng)?;
        }
    }
    Ok(())
}

fn move_pair(client: &mut ReconnectingClient<'_>, group: usize, rng: &mut Rng) -> Result<(), String> {
    let pair = rng.usize(..GROUP_MEMBERS[group] / 2) * 2;
    let from = rng.usize(..2);
    let (from, to) = (set_key(group, from), set_key(group, 1 - from));
    let moved = [pair, pair + 1].map(|number| format!("SMOVE {from} {to} {}", member(number)));
    for command in ["MULTI", &moved[0], &moved[1], "EXEC"] {
        let Some(reply) = client.execute(command)? else {
            return Ok(());
        };
        if let [StressReply::Integer(one), StressReply::Integer(other)] = reply.items()
            && one != other
        {
            return Err(format!("a pair was separated: {moved:?} moved {one} and {other}"));
        }
    }
    Ok(())
}

fn check_union(client: &mut ReconnectingClient<'_>, group: usize, thread: usize, rng: &mut Rng) -> Result<(), String> {
    let (one, two) = (set_key(group, 0), set_key(group, 1));
    let (all, members) = (format!("united:{thread}"), GROUP_MEMBERS[group] as i64);
    let cases = [
        (format!("SUNIONSTORE {all} {one} {two}"), members),
        (format!("SINTERSTORE {all} {one} {two}"), 0),
        (format!("ZUNIONSTORE {all} 2 {two} {one}"), members),
        (format!("SINTERCARD 2 {one} {two}"), 0),
    ];
    let (command, wanted) = &cases[rng.usize(..cases.len())];
    match client.call(command)? {
        Some(StressReply::Integer(found)) if found != *wanted => {
            return Err(format!("{command} gave {found} instead of {wanted}"));
        }
        Some(StressReply::Integer(_)) if command.starts_with('Z') => {
            // A member that is in both sets would have the sum of two scores.
            let once = client.call(&format!("ZCOUNT {all} 1 1"))?;
            if once.is_some_and(|once| once != StressReply::Integer(members)) {
                return Err(format!("{command}: a member was in both sets at once"));
            }
        }
        Some(StressReply::Integer(_)) => client.run.succeed(),
        None => {}
        Some(other) => return Err(format!("{command} was answered by {other:?}")),
    }
    match client.execute(&format!("SUNIONSTORE {all} {one}"))? {
        Some(StressReply::Integer(found)) if found % 2 != 0 => {
            Err(format!("half a pair was visible among {found} members"))
        }
        _ => Ok(()),
    }
}

/// Checks that no member was lost.
pub fn check_members(run: &StressRun) -> Result<(), String> {
    let mut client = ReconnectingClient::new(run, 0)?;
    for (group, members) in GROUP_MEMBERS.into_iter().enumerate() {
        let both = format!("SUNION {} {}", set_key(group, 0), set_key(group, 1));
        let found = client.call(&both)?.map_or(0, |reply| reply.items().len());
        if found != members {
            return Err(format!("{found} of {members} members are left"));
        }
    }
    Ok(())
}
