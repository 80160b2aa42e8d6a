//! What the runtime logs, for tests that read it.

use std::cell::RefCell;
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

thread_local! {
    static LOGGED: RefCell<Vec<(Level, String)>> = const { RefCell::new(Vec::new()) };
}

/// Keeps the messages of all events by thread. It is the subscriber of the whole program: `tracing` caches for each
/// call site whether there is a subscriber, and another thread could cache that there is none.
pub(crate) struct Messages;

impl Messages {
    /// Listens from here on; what was logged before on this thread is forgotten.
    pub(crate) fn listen() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(Messages).expect("it is the only one here"));
        LOGGED.take();
    }

    /// Those of this thread that are as important as this, or more so.
    pub(crate) fn here(level: Level) -> Vec<String> {
        LOGGED
            .with_borrow(|logged| logged.iter().filter(|(of, _)| *of <= level).map(|(_, text)| text.clone()).collect())
    }
}

impl Subscriber for Messages {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        LOGGED.with_borrow_mut(|logged| logged.push((*event.metadata().level(), message.0)));
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
