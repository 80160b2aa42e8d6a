//! Links between hosts that all answer: which of them are broken, and which hosts have to go so that none is left.
//!
//! Each host tries to reach its [`partners`], and [`LinkVerdict::of`] compares what both ends of each link have found. Hosts
//! are numbered, in the order in which one of two equal choices is taken.

use super::verdict::Link;
use std::collections::{BTreeMap, BTreeSet};

/// Number of hosts up to which each host checks its links to all others. Beyond it a host checks those to the hosts at
/// distances of powers of two, in both directions: the partners of rings, trees and recursive halving.
pub const ALL_LINKS_MAX: usize = 32;
/// Greatest number of hosts with broken links for which all choices are compared. Beyond it, the host with the most
/// broken links goes first.
const EXACT_MAX: usize = 12;

/// Returns the hosts to which this one of `hosts` hosts checks its links, at most 64 of up to
/// [`HOSTS_MAX`](super::HOSTS_MAX). A host is a partner of its partners.
#[must_use]
pub fn partners(hosts: usize, host: usize) -> BTreeSet<usize> {
    if host >= hosts {
        return BTreeSet::new();
    }
    let mut partners: BTreeSet<usize> = match hosts <= ALL_LINKS_MAX {
        true => (0..hosts).collect(),
        false => {
            let distances = std::iter::successors(Some(1_usize), |distance| distance.checked_mul(2));
            let distances = distances.take_while(|distance| *distance <= hosts / 2);
            distances.flat_map(|distance| [(host + distance) % hosts, (host + hosts - distance) % hosts]).collect()
        }
    };
    partners.remove(&host);
    partners
}

/// What checks of links by both of their ends prove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkVerdict {
    /// Links that neither end can use.
    pub broken: BTreeSet<Link>,
    /// Links that one end could not use, while the other one could, or has not answered: nothing is proven about them.
    pub doubtful: BTreeSet<Link>,
    /// The hosts without which no broken link is left, and the most ranks are.
    pub excluded: BTreeSet<usize>,
    /// Number of ranks on all hosts.
    pub ranks: u32,
    /// Number of ranks that are left without the excluded hosts.
    pub left: u32,
}

impl LinkVerdict {
    /// Returns what is proven if host `n` has `ranks[n]` ranks, and `reached` states for a link, from the first host to
    /// the second one, if the first has reached the second.
    ///
    /// A link is broken if neither end reaches the other, and one of them reaches another host or there is no other: if
    /// no host reaches any, all are closed to each other, which explains no hang. Of the sets of hosts without which no
    /// broken link is left, the one with the fewest ranks is excluded; of equal ones the smaller one; then the first in
    /// order.
    #[must_use]
    pub fn of(ranks: &[u32], reached: &BTreeMap<Link, bool>) -> LinkVerdict {
        let known = |link: &Link| link.0 != link.1 && link.0.max(link.1) < ranks.len();
        let reached = || reached.iter().filter(|(link, _)| known(link));
        let works: BTreeSet<usize> =
            reached().filter(|(_, passed)| **passed).flat_map(|((a, b), _)| [*a, *b]).collect();
        let mut ends: BTreeMap<Link, Vec<bool>> = BTreeMap::new();
        for ((from, to), passed) in reached() {
            ends.entry((*from.min(to), *from.max(to))).or_default().push(*passed);
        }
        let counts = |(a, b): &Link| works.contains(a) || works.contains(b) || ranks.len() == 2;
        let mut verdict = LinkVerdict::default();
        for (link, passed) in ends {
            match *passed {
                [false, false] if counts(&link) => _ = verdict.broken.insert(link),
                [true] | [true, true] => {}
                _ => _ = verdict.doubtful.insert(link),
            }
        }
        verdict.excluded = exclude(ranks, &verdict.broken);
        verdict.ranks = total(ranks.iter().copied());
        let left = ranks.iter().enumerate().filter(|(host, _)| !verdict.excluded.contains(host));
        verdict.left = total(left.map(|(_, ranks)| *ranks));
        verdict
    }

    /// Returns one sentence per broken link, and one about the hosts that are excluded, if there are any. `name` returns
    /// the name of a host.
    pub fn sentences(&self, ranks: &[u32], name: impl Fn(usize) -> String) -> Vec<String> {
        let broken = |(a, b): &Link| {
            format!("the link between {} and {} is broken: neither reaches the other", name(*a), name(*b))
        };
        let mut sentences: Vec<String> = self.broken.iter().map(broken).collect();
        if !self.excluded.is_empty() {
            sentences.push(self.choice(ranks, &name));
        }
        sentences
    }

    fn choice(&self, ranks: &[u32], name: &impl Fn(usize) -> String) -> String {
        let names: Vec<String> = self.excluded.iter().map(|host| name(*host)).collect();
        let (left, all) = (self.left, self.ranks);
        let chosen = format!("without {} {left} of {all} ranks are left", names.join(", "));
        let (Some((a, b)), true) = (self.broken.first(), self.broken.len() == 1) else {
            return format!("{chosen}, the most with which no broken link is left");
        };
        let other = if self.excluded.contains(a) { *b } else { *a };
        match all.saturating_sub(ranks.get(other).copied().unwrap_or_default()) {
            fewer if fewer < left => format!("{chosen}, without {} only {fewer}", name(other)),
            _ => format!("{chosen}, as many as without {}: the first of them by name is excluded", name(other)),
        }
    }
}

/// Returns the hosts to exclude.
fn exclude(ranks: &[u32], broken: &BTreeSet<Link>) -> BTreeSet<usize> {
    let hosts: BTreeSet<usize> = broken.iter().flat_map(|(a, b)| [*a, *b]).collect();
    let of = |hosts: &BTreeSet<usize>| total(hosts.iter().filter_map(|host| ranks.get(*host)).copied());
    if hosts.len() > EXACT_MAX {
        return exclude_one_by_one(ranks, broken.clone());
    }
    let choices = (0..1_u32 << hosts.len()).map(|choice| {
        let is_in = |(at, _): &(usize, &usize)| (choice >> at) & 1 == 1;
        hosts.iter().enumerate().filter(is_in).map(|(_, host)| *host).collect::<BTreeSet<usize>>()
    });
    let leaves_none = |choice: &BTreeSet<usize>| broken.iter().all(|(a, b)| choice.contains(a) || choice.contains(b));
    choices.filter(leaves_none).min_by_key(|choice| (of(choice), choice.len(), choice.clone())).unwrap_or_default()
}

/// Excludes the host with the most broken links; of equal ones the one with the fewest ranks, then the first, until no
/// broken link is left.
fn exclude_one_by_one(ranks: &[u32], mut broken: BTreeSet<Link>) -> BTreeSet<usize> {
    let mut excluded = BTreeSet::new();
    while !broken.is_empty() {
        let mut links: BTreeMap<usize, usize> = BTreeMap::new();
        broken.iter().flat_map(|(a, b)| [*a, *b]).for_each(|host| *links.entry(host).or_default() += 1);
        let order = |(host, links): &(usize, usize)| (usize::MAX - links, ranks.get(*host).copied(), *host);
        let Some((host, _)) = links.into_iter().min_by_key(order) else { break };
        broken.retain(|(a, b)| *a != host && *b != host);
        excluded.insert(host);
    }
    excluded
}

fn total(ranks: impl Iterator<Item = u32>) -> u32 {
    ranks.fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the results of all checks when these links are cut, in one direction or both: no connection over them opens.
    fn with_cuts(hosts: usize, cut: &[Link]) -> BTreeMap<Link, bool> {
        let is_cut = |a: usize, b: usize| cut.iter().any(|link| *link == (a, b) || *link == (b, a));
        let links = (0..hosts).flat_map(|host| partners(hosts, host).into_iter().map(move |other| (host, other)));
        links.map(|(host, other)| ((host, other), !is_cut(host, other))).collect()
    }

    fn sentences(ranks: &[u32], found: &BTreeMap<Link, bool>) -> Vec<String> {
        LinkVerdict::of(ranks, found).sentences(ranks, |host| format!("h{}", host + 1))
    }

    #[test]
    fn the_host_without_which_the_most_ranks_are_left_is_excluded() {
        let ranks = [1, 2, 1, 1, 1];
        let found = LinkVerdict::of(&ranks, &with_cuts(5, &[(1, 2)]));
        assert_eq!((found.broken.first(), found.broken.len()), (Some(&(1, 2)), 1));
        assert_eq!((&found.excluded, found.left, found.ranks), (&[2].into(), 5, 6));
        assert!(found.doubtful.is_empty());
        let expected = [
            "the link between h2 and h3 is broken: neither reaches the other",
            "without h3 5 of 6 ranks are left, without h2 only 4",
        ];
        assert_eq!(sentences(&ranks, &with_cuts(5, &[(1, 2)])), expected);
    }

    #[test]
    fn of_two_equal_hosts_the_first_by_name_is_excluded() {
        for hosts in 2..6 {
            let (ranks, found) = (vec![2; hosts], with_cuts(hosts, &[(0, 1)]));
            assert_eq!(LinkVerdict::of(&ranks, &found).excluded, [0].into(), "{hosts} hosts");
            assert!(
                sentences(&ranks, &found)[1].ends_with("as many as without h2: the first of them by name is excluded")
            );
        }
    }

    #[test]
    fn one_host_with_several_broken_links_is_excluded_alone_if_that_leaves_more_ranks() {
        let cut = [(0, 2), (1, 2), (2, 3)];
        assert_eq!(LinkVerdict::of(&[1, 1, 2, 1, 1], &with_cuts(5, &cut)).excluded, [2].into());
        assert_eq!(LinkVerdict::of(&[1, 1, 8, 1, 1], &with_cuts(5, &cut)).excluded, [0, 1, 3].into());
        assert_eq!(LinkVerdict::of(&[1, 1, 3, 1, 1], &with_cuts(5, &cut)).excluded, [2].into(), "the smaller set");
    }

    #[test]
    fn healthy_links_and_no_answers_exclude_nothing() {
        let nothing = |found: &LinkVerdict| found.excluded.is_empty() && found.broken.is_empty();
        assert!(nothing(&LinkVerdict::of(&[1, 1, 1], &with_cuts(3, &[]))));
        assert!(nothing(&LinkVerdict::of(&[1, 1, 1], &BTreeMap::new())));
        assert!(nothing(&LinkVerdict::of(&[], &[((0, 1), false), ((1, 0), false)].into())), "unknown hosts");
    }

    #[test]
    fn a_link_that_one_end_uses_or_has_not_checked_is_doubtful() {
        let mut found = with_cuts(3, &[(0, 1)]);
        found.insert((1, 0), true);
        let verdict = LinkVerdict::of(&[1, 1, 1], &found);
        assert_eq!((verdict.doubtful, verdict.excluded), ([(0, 1)].into(), BTreeSet::new()));
        found.remove(&(1, 0));
        let verdict = LinkVerdict::of(&[1, 1, 1], &found);
        assert_eq!((verdict.doubtful, verdict.excluded), ([(0, 1)].into(), BTreeSet::new()));
    }

    #[test]
    fn hosts_that_are_all_closed_to_each_other_explain_no_hang() {
        let found = LinkVerdict::of(&[1, 1, 1], &with_cuts(3, &[(0, 1), (0, 2), (1, 2)]));
        assert_eq!((found.doubtful.len(), found.excluded.len()), (3, 0));
        let found = LinkVerdict::of(&[1, 1], &with_cuts(2, &[(0, 1)]));
        assert_eq!(found.excluded, [0].into(), "two hosts have no third one to compare with");
    }

    #[test]
    fn no_choice_of_a_few_hosts_leaves_more_ranks() {
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let hosts = 3 + usize::try_from(random(4)).unwrap();
            let ranks: Vec<u32> = (0..hosts).map(|_| 1 + u32::try_from(random(3)).unwrap()).collect();
            let number = |random: &mut dyn FnMut(u64) -> u64| usize::try_from(random(hosts as u64)).unwrap();
            let cut: Vec<Link> = (0..2).map(|_| (number(&mut random), number(&mut random))).collect();
            let found = LinkVerdict::of(&ranks, &with_cuts(hosts, &cut));
            let leaves_none = |choice: u32| found.broken.iter().all(|(a, b)| ((choice >> a) | (choice >> b)) & 1 == 1);
            let left = |choice: u32| {
                let stays = ranks.iter().enumerate().filter(|(host, _)| (choice >> host) & 1 == 0);
                stays.map(|(_, ranks)| *ranks).sum::<u32>()
            };
            let best = (0..1_u32 << hosts).filter(|choice| leaves_none(*choice)).map(left).max();
            assert_eq!(Some(found.left), best, "{ranks:?} {cut:?}: {found:?}");
        }
    }

    #[test]
    fn many_broken_links_are_resolved_one_host_at_a_time() {
        let cut: Vec<Link> = (1..30).map(|host| (0, host)).chain([(7, 8)]).collect();
        let found = LinkVerdict::of(&[4; 32], &with_cuts(32, &cut));
        assert_eq!((found.broken.len(), found.excluded), (30, [0, 7].into()));
    }

    #[test]
    fn partners_are_mutual_and_few() {
        for hosts in [0, 1, 2, 5, ALL_LINKS_MAX, ALL_LINKS_MAX + 1, 100, 1000] {
            for host in 0..hosts {
                let others = partners(hosts, host);
                assert!(!others.contains(&host) && others.len() < 64, "{hosts}: {others:?}");
                assert!(hosts > ALL_LINKS_MAX || others.len() == hosts - 1);
                assert!(others.iter().all(|other| partners(hosts, *other).contains(&host)), "{hosts}: {host}");
            }
        }
        assert!(partners(super::super::HOSTS_MAX, 5).len() <= 64);
        assert!(partners(3, 3).is_empty());
    }
}
