//! The `main` function of a test whose program is also the guard of its own launcher.
//!
//! A minimal test runner for one test: it supports filters and `--list`, and nothing else of cargo's own runner.

use crate::launch::guard;
use std::process::ExitCode;

/// Runs an asynchronous test on two threads, unless the command line selects other tests or requests a list.
///
/// A [`LocalLauncher`](crate::launch::LocalLauncher) starts its own program again as the guard. A test program with
/// cargo's test runner cannot serve as the guard. A test program with `harness = false` in its manifest can, if its
/// `main` does only this:
/// ```no_run
/// use std::process::ExitCode;
/// use taskd_core::testing;
///
/// fn main() -> ExitCode {
///     testing::guarded_test("my_launcher_keeps_the_contract", my_launcher_keeps_the_contract)
/// }
///
/// async fn my_launcher_keeps_the_contract() {}
/// ```
///
/// # Panics
/// Panics if the test panics.
pub fn guarded_test(name: &str, test: impl AsyncFnOnce()) -> ExitCode {
    guard::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|word| word == "--list") {
        println!("{name}: test");
        return ExitCode::SUCCESS;
    }
    let mut filters = arguments.iter().filter(|word| !word.starts_with('-')).peekable();
    if filters.peek().is_none() || filters.any(|filter| name.contains(filter.as_str())) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a test has a runtime").block_on(test());
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}
