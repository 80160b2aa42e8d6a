//! Reader of bounded lines.

use std::io;
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// Result of reading a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// The buffer holds a complete line, without its line feed.
    Whole,
    /// The line is longer than the limit.
    Long,
    /// The peer closed its writing side. An incomplete last line is discarded.
    End,
}

/// Reads until `line` is complete. Cancel-safe: bytes read so far stay in `line`, and the next call continues.
///
/// # Errors
/// I/O errors of the connection.
pub(super) async fn read_line<R: AsyncBufRead + Unpin>(
    from: &mut R,
    line: &mut Vec<u8>,
    bytes_max: usize,
) -> io::Result<Line> {
    loop {
        let available = from.fill_buf().await?;
        if available.is_empty() {
            return Ok(Line::End);
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(available.len());
        if line.len() + taken > bytes_max {
            return Ok(Line::Long);
        }
        line.extend_from_slice(&available[..taken]);
        from.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            return Ok(Line::Whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::BufReader;

    async fn lines(bytes: &[u8], buffer: usize) -> Vec<(Line, Vec<u8>)> {
        let mut reader = BufReader::with_capacity(buffer, bytes);
        let mut read = Vec::new();
        loop {
            let mut line = Vec::new();
            let found = read_line(&mut reader, &mut line, 8).await.expect("bytes in memory");
            read.push((found, line));
            if found != Line::Whole {
                return read;
            }
        }
    }

    #[tokio::test]
    async fn lines_come_whole_however_they_arrive_and_a_long_one_ends_it() {
        for buffer in [1, 3, 64] {
            let read = lines(b"one\n\n12345678\nrest", buffer).await;
            let whole = |text: &[u8]| (Line::Whole, text.to_vec());
            assert_eq!(read[..3], [whole(b"one"), whole(b""), whole(b"12345678")]);
            assert_eq!(read[3].0, Line::End);
            assert_eq!(lines(b"ok\n123456789\n", buffer).await[1].0, Line::Long);
        }
    }
}
