//! Prints the public items of a package, one a line: `public_api_of RUSTDOC_JSON`.

use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: public_api_of RUSTDOC_JSON");
        return ExitCode::from(64);
    };
    // Derived traits and those that the compiler finds are left out: they would hide a change of an item in many lines.
    let api = public_api::Builder::from_rustdoc_json(file)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build();
    let items = match api {
        Ok(api) => api.items().map(|item| item.to_string()).collect::<Vec<_>>(),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    match writeln!(io::stdout(), "{}", items.join("\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
