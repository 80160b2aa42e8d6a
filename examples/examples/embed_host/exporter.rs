//! A health exporter of another vendor: it sends one line to the socket and reads one line back. All it needs of taskd
//! is the format.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use taskd_examples::program::Failure;

/// Reports that a device of a host is lost.
pub(crate) fn main(socket: &Path, node: &str) -> ExitCode {
    match report(socket, node) {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("exporter: {error}");
            ExitCode::FAILURE
        }
    }
}

fn report(socket: &Path, node: &str) -> Result<String, Failure> {
    let mut stream = UnixStream::connect(socket)?;
    let fault = serde_json::json!({
        "by": "gpu-exporter", "node": node, "device": 3, "class": "device",
        "text": "Xid 79: GPU has fallen off the bus", "confidence": 1.0,
    });
    writeln!(stream, "{}", serde_json::json!({ "v": 2, "id": 1, "do": "report_fault", "fault": fault }))?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer.trim_end().to_owned())
}
