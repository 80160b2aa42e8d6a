//! Other tracing libraries for comparison, each configured to keep a span for a reader.

use super::cost::per_one;
use fastrace::collector::{Config, Reporter, SpanRecord};
use fastrace::local::LocalSpan;
use fastrace::prelude::{Span, SpanContext};
use std::hint::black_box;
use std::sync::Mutex;
use std::time::Instant;
use tracing::span::{Attributes, Id};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// Spans under one parent, so that no parent collects more than it would in a request or a step.
const SPANS_PER_PARENT: u32 = 1000;

/// fastrace with a collector that discards its spans in a separate thread.
pub(crate) struct Fastrace;

struct NoReporter;

impl Reporter for NoReporter {
    fn report(&mut self, spans: Vec<SpanRecord>) {
        black_box(spans);
    }
}

impl Fastrace {
    pub(crate) fn start() -> Fastrace {
        fastrace::set_reporter(NoReporter, Config::default());
        Fastrace
    }

    /// Returns the CPU time of this thread for one of `spans` spans, in nanoseconds.
    pub(crate) fn per_span(&self, spans: u32) -> f64 {
        per_one(spans.div_ceil(SPANS_PER_PARENT), || {
            let root = Span::root("step", SpanContext::random());
            let _parent = root.set_local_parent();
            for _ in 0..SPANS_PER_PARENT {
                drop(black_box(LocalSpan::enter_with_local_parent("forward")));
            }
        }) / f64::from(SPANS_PER_PARENT)
    }
}

/// `tracing` with a layer that keeps the name, begin and end of each span.
pub(crate) struct Tracing {
    _subscriber: DefaultGuard,
}

/// Keeps a limited number of spans.
#[derive(Default)]
struct Keep(Mutex<Vec<(&'static str, Instant, Instant)>>);

/// The time when a span was entered.
struct Entered(Instant);

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Keep {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Entered(now()));
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let begun = span.extensions().get::<Entered>().map_or_else(now, |entered| entered.0);
        let mut kept = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if kept.len() >= 1 << 16 {
            kept.clear();
        }
        kept.push((span.name(), begun, now()));
    }
}

fn now() -> Instant {
    Instant::now()
}

impl Tracing {
    pub(crate) fn start() -> Tracing {
        let subscriber = tracing_subscriber::registry().with(Keep::default());
        Tracing { _subscriber: tracing::subscriber::set_default(subscriber) }
    }

    /// Returns the CPU time of this thread for one of `spans` spans, in nanoseconds.
    pub(crate) fn per_span(&self, spans: u32) -> f64 {
        per_one(spans, || {
            drop(black_box(tracing::info_span!("forward").entered()));
        })
    }
}
