//! Names of process groups, which contain the ranks of their members.
//!
//! The format is written by the recorders: a name, a bar, and runs of ranks. This module knows no collective.

/// Maximum number of members that a name can list. A longer list is not valid, and the members are unknown.
const MEMBERS_MAX: u64 = 1 << 20;

/// Splits a text of the table of names into a group's name and its members by global rank: `dp_1|1-7:2` is group `dp_1`
/// of ranks 1, 3, 5 and 7. A part that is not a valid list belongs to the name, and the members are unknown: the list
/// that is returned is empty.
#[must_use]
pub fn split_group_name(text: &str) -> (&str, Vec<u32>) {
    text.rsplit_once('|').and_then(|(name, ranks)| Some((name, members(ranks)?))).unwrap_or((text, Vec::new()))
}

fn members(ranks: &str) -> Option<Vec<u32>> {
    let mut members = Vec::new();
    for run in ranks.split(',') {
        let (run, stride) = run.split_once(':').unwrap_or((run, "1"));
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let [first, last, stride] = [first, last, stride].map(|number| number.parse::<u32>().ok());
        let (first, last, stride) = (first?, last?, stride.filter(|stride| *stride > 0)?);
        let count = u64::from(last.checked_sub(first)? / stride) + 1;
        if members.len() as u64 + count > MEMBERS_MAX {
            return None;
        }
        members.extend((first..=last).step_by(stride as usize));
    }
    Some(members)
}

/// Returns the name of the sends and receives of a group from one global rank to another. Both sides count them in the
/// same order: the n-th send to a peer is the peer's n-th receive from that rank.
#[must_use]
pub fn point_to_point_name(group: &str, from: u32, to: u32) -> String {
    format!("{group} from {from} to {to}")
}

/// Returns true for a name from [`point_to_point_name`] with these members.
#[must_use]
pub fn is_point_to_point(name: &str, members: &[u32]) -> bool {
    let Some((rest, to)) = name.rsplit_once(" to ") else { return false };
    let Some((_, from)) = rest.rsplit_once(" from ") else { return false };
    matches!(members, [a, b] if from.parse() == Ok(*a) && to.parse() == Ok(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_and_receives_are_recognised_by_name_and_members() {
        let name = point_to_point_name("pp from 1 to 2", 7, 9);
        assert!(is_point_to_point(&name, &[7, 9]));
        assert!(!is_point_to_point(&name, &[9, 7]) && !is_point_to_point(&name, &[7, 9, 11]));
        assert!(!is_point_to_point("dp", &[7, 9]) && !is_point_to_point("from 7 to 9", &[7, 9]));
    }

    #[test]
    fn members_stand_behind_the_last_bar() {
        let known = [
            ("default|0-3", ("default", vec![0, 1, 2, 3])),
            ("dp_1|1-7:2", ("dp_1", vec![1, 3, 5, 7])),
            ("odd|5,3,9", ("odd", vec![5, 3, 9])),
            ("a|b|0,4-6", ("a|b", vec![0, 4, 5, 6])),
            ("one|7", ("one", vec![7])),
        ];
        for (text, expected) in known {
            assert_eq!(split_group_name(text), expected);
        }
        for text in ["default", "", "a|b", "a|", "a|3-1", "a|0-4:0", "a|-1", "a|0-4294967295", "a|1,,2"] {
            assert_eq!(split_group_name(text), (text, vec![]));
        }
    }
}
