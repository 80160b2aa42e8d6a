//! The supervisor's incidents beside the verdict: both about the same component, or not.

use crate::document::{Agreement, Blame, Incident};

/// Class of the incidents that the detectors of slow components open.
const SLOW: &str = "slow";
/// Maximum number of incidents that are compared; the number of all incidents is shown beside them.
const AGREEMENTS_MAX: usize = 32;

/// Compares incidents with the blamed components: all incidents about slow components, and others about a component that
/// is blamed.
pub(super) fn agreements(incidents: &[Incident], blamed: &[Blame]) -> Vec<Agreement> {
    let compared = incidents.iter().enumerate().filter_map(|(at, incident)| compare(at, incident, blamed));
    compared.take(AGREEMENTS_MAX).collect()
}

fn compare(at: usize, incident: &Incident, blamed: &[Blame]) -> Option<Agreement> {
    let is_slow = incident.class.starts_with(SLOW);
    let suspect = &incident.suspect;
    let same = blamed.iter().find(|blame| is_same(suspect, blame));
    let near = blamed.iter().find(|blame| rank_of(suspect).is_some_and(|rank| blame.ranks.contains(&rank)));
    let (agrees, text) = match (same, near) {
        (Some(blame), _) if is_slow => (
            true,
            format!(
                "The supervisor blamed {suspect} while the job ran, and the trace shows {}: they agree.",
                blame.cause
            ),
        ),
        (Some(blame), _) | (None, Some(blame)) if !is_slow => {
            let text = format!(
                "The supervisor recorded an incident of the class {} of {suspect}; the trace shows {} of {}: both are about \
                 the same rank.",
                incident.class, blame.cause, blame.component
            );
            (true, text)
        }
        (_, Some(blame)) => {
            let text = format!(
                "The supervisor blamed {suspect}, the trace shows {} of {}, which contains it: they agree in part.",
                blame.cause, blame.component
            );
            (true, text)
        }
        _ if is_slow => {
            let instead = match blamed.first() {
                Some(blame) => format!("{} of {}", blame.cause, blame.component),
                None => "no slow component".to_owned(),
            };
            let text = format!(
                "The supervisor blamed {suspect} while the job ran, and the trace shows {instead}: they disagree. Compare the \
                 steps that the trace covers with the time of the incident."
            );
            (false, text)
        }
        _ => return None,
    };
    Some(Agreement { incident: at, agrees, text })
}

/// Returns true if the supervisor's name of a component means the blamed one.
fn is_same(suspect: &str, blame: &Blame) -> bool {
    let component = blame.component.as_str();
    let bare = component.split_once(' ').map_or(component, |(_, name)| name);
    // Supervisors write hosts without the word, and groups by kind and number.
    suspect == component || (component.starts_with("host ") && suspect == bare)
}

fn rank_of(suspect: &str) -> Option<u32> {
    suspect.strip_prefix("rank ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::agreements;
    use crate::document::{Blame, Incident};

    fn incident(class: &str, suspect: &str) -> Incident {
        let (class, suspect) = (class.to_owned(), suspect.to_owned());
        Incident { at_us: 0, class, suspect, sentence: String::new(), evidence: Vec::new() }
    }

    fn blame(component: &str, ranks: &[u32], cause: &str) -> Blame {
        Blame { component: component.into(), ranks: ranks.to_vec(), cause: cause.into(), ..Blame::default() }
    }

    #[test]
    fn incident_about_the_blamed_component_agrees() {
        let blamed = [blame("rank 3", &[3], "slow-rank"), blame("host b", &[4, 5], "slow-host")];
        let incidents = [
            incident("slow", "rank 3"),
            incident("slow", "b"),
            incident("slow", "rank 5"),
            incident("exit", "rank 3"),
            incident("exit", "rank 9"),
        ];
        let found = agreements(&incidents, &blamed);
        assert_eq!(found.iter().map(|one| one.incident).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(found.iter().all(|one| one.agrees));
        assert!(found[2].text.contains("in part"), "{}", found[2].text);
    }

    #[test]
    fn incident_about_another_component_disagrees() {
        let incidents = [incident("slow", "rank 2")];
        for blamed in [vec![blame("rank 3", &[3], "slow-rank")], Vec::new()] {
            let found = agreements(&incidents, &blamed);
            assert!(!found[0].agrees && found[0].text.contains("they disagree"), "{found:?}");
        }
    }
}
