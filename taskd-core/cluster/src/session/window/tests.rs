use super::*;
use crate::wire::proto::{Cancel, Confirm};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const SMALL: WindowBounds = WindowBounds { frames_max: 4, bytes_max: 1 << 20 };

fn body(call: u64) -> Body {
    Body::Cancel(Cancel { call })
}

fn taken(window: &mut Window, frame: Frame) -> Option<u64> {
    match window.take(frame) {
        Taken::New(Body::Cancel(cancel)) => Some(cancel.call),
        Taken::Nothing => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_frame_is_taken_once_and_in_order() {
    let (mut here, mut there) = (Window::new(SMALL), Window::new(SMALL));
    let frames: Vec<Frame> = (1..=3).map(|call| here.push(body(call))).collect();
    assert_eq!(taken(&mut there, frames[0].clone()), Some(1));
    assert_eq!(taken(&mut there, frames[0].clone()), None, "it is repeated");
    assert!(matches!(there.take(frames[2].clone()), Taken::Broken(_)), "the second is missing");
}

#[test]
fn a_full_window_has_room_again_when_its_frames_are_confirmed() {
    let mut window = Window::new(SMALL);
    (1..=4).for_each(|call| _ = window.push(body(call)));
    assert!(!window.has_room(1));
    let confirm = Frame { number: 0, received: 2, body: Some(Body::Confirm(Confirm {})) };
    assert_eq!(window.take(confirm), Taken::Nothing);
    assert!(window.has_room(1));
    assert!(Window::new(SMALL).has_room(2 << 20), "an empty window takes a long body");
    assert!(!window.has_room(2 << 20), "and a used one does not");
}

#[test]
fn a_peer_that_confirms_what_was_never_sent_is_refused() {
    let mut window = Window::new(SMALL);
    window.push(body(1));
    assert!(matches!(window.take(Frame { number: 1, received: 2, body: Some(body(1)) }), Taken::Broken(_)));
    assert_eq!(window.resume(2), None);
}

#[test]
fn a_peer_that_lost_confirmed_frames_cannot_resume() {
    let mut window = Window::new(SMALL);
    (1..=3).for_each(|call| _ = window.push(body(call)));
    assert!(window.confirm(2));
    assert_eq!(window.resume(1), None, "frame 2 was forgotten here");
    assert_eq!(window.resume(2).map(|frames| frames.len()), Some(1));
}

#[test]
fn a_frame_without_a_known_body_ends_the_session() {
    assert!(matches!(Window::new(SMALL).take(Frame { number: 1, received: 0, body: None }), Taken::Broken(_)));
}

/// Connections break at any frame, and confirmations get lost: everything arrives once, in order.
#[test]
fn nothing_is_lost_or_repeated_over_connections_that_break() {
    let mut runner = TestRunner::deterministic();
    let breaks = prop::collection::vec((0_usize..6, any::<bool>()), 1..40);
    let result = runner.run(&breaks, |breaks| {
        let (mut here, mut there) = (Window::new(SMALL), Window::new(SMALL));
        let (mut next, mut seen) = (0_u64, Vec::new());
        for (arrive, confirms) in breaks {
            let mut wire = here.resume(there.taken()).expect("nothing confirmed is lost");
            while here.has_room(1) {
                next += 1;
                wire.push(here.push(body(next)));
            }
            seen.extend(wire.into_iter().take(arrive).filter_map(|frame| taken(&mut there, frame)));
            if confirms {
                here.confirm(there.taken());
            }
        }
        prop_assert_eq!(&seen, &(1..=seen.len() as u64).collect::<Vec<_>>());
        Ok(())
    });
    result.expect("every frame arrives once, in order");
}
