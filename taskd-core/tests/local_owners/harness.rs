//! A test runner as small as can be, since these tests need a `main` of their own.

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A test by its name.
pub(crate) type Test = (&'static str, fn() -> Pin<Box<dyn Future<Output = ()>>>);

/// Lists async functions as tests.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const TESTS: &[crate::harness::Test] =
            &[$((concat!(module_path!(), "::", stringify!($name)), || Box::pin($name()))),*];
    };
}
pub(crate) use tests;

/// Whether to run with the full counts (`TASKD_SOAK=1`).
pub(crate) fn soak() -> bool {
    std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1")
}

/// Longer than any of them takes, without and with the full counts.
const PATIENCE: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(1800)];

/// Runs the tests of these suites: those whose name contains one of the `arguments`, all if there are none. Understands
/// `--list`.
pub(crate) fn run(arguments: &[&str], suites: &[&[Test]]) -> ExitCode {
    let filters: Vec<&&str> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let chosen = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(**filter));
    let tests: Vec<Test> = suites.concat().into_iter().filter(|(name, _)| chosen(name)).collect();
    if arguments.contains(&"--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", tests.len());
    let failed = tests.iter().filter(|(name, test)| !passes(name, *test)).count();
    println!(
        "\ntest result: {}. {} passed; {failed} failed\n",
        if failed == 0 { "ok" } else { "FAILED" },
        tests.len() - failed
    );
    ExitCode::from(u8::from(failed > 0))
}

fn passes(name: &str, test: fn() -> Pin<Box<dyn Future<Output = ()>>>) -> bool {
    let begun = Instant::now();
    let outcome = std::panic::catch_unwind(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime
            .block_on(async { tokio::time::timeout(PATIENCE[usize::from(soak())], test()).await })
            .expect("it takes too long");
    });
    println!("test {name} ... {} ({:?})", if outcome.is_ok() { "ok" } else { "FAILED" }, begun.elapsed());
    outcome.is_ok()
}
