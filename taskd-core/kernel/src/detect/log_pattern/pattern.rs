//! A text with gaps, and the search for it in a line in linear time.
//!
//! The pieces are found one after the other, each at its first occurrence behind the one before: that leaves the most
//! text for the rest, so no other choice has to be tried.

/// Stands for any text.
const GAP: char = '*';

/// Stands for a decimal number.
const RANK: &str = "{rank}";

/// A parsed pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// A number between two texts.
    Rank(String, String),
}

/// Result of a successful search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) rank: Option<u32>,
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// The reason, if there is no text in it, or more than one number.
    pub(super) fn parse(text: &str) -> Result<Pattern, &'static str> {
        if text.matches(RANK).count() > 1 {
            return Err("the pattern has {rank} more than once");
        }
        let piece = |piece: &str| match piece.split_once(RANK) {
            Some((before, after)) => Piece::Rank(before.to_owned(), after.to_owned()),
            None => Piece::Text(piece.to_owned()),
        };
        let pieces: Vec<Piece> = text.split(GAP).filter(|piece| !piece.is_empty()).map(piece).collect();
        let has_text = |piece: &Piece| match piece {
            Piece::Text(text) => !text.trim().is_empty(),
            Piece::Rank(before, _) => !before.trim().is_empty() && !before.ends_with(|c: char| c.is_ascii_digit()),
        };
        if !pieces.iter().all(has_text) || pieces.is_empty() {
            return Err("the pattern has a part without text, or no text or a digit before {rank}");
        }
        Ok(Pattern { pieces })
    }

    pub(super) fn has_rank(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Rank(..)))
    }

    /// Searches a line.
    pub(super) fn find(&self, line: &str) -> Option<Found> {
        let (mut rest, mut rank) = (line, None);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => rest = rest.split_once(text.as_str())?.1,
                Piece::Rank(before, after) => (rest, rank) = number(rest, before, after)?,
            }
        }
        Some(Found { rank })
    }
}

/// Finds a number between two texts; returns the text behind it, and the number.
fn number<'a>(text: &'a str, before: &str, after: &str) -> Option<(&'a str, Option<u32>)> {
    text.match_indices(before).find_map(|(at, _)| {
        let behind = &text[at + before.len()..];
        let digits = behind.find(|c: char| !c.is_ascii_digit()).unwrap_or(behind.len());
        let rank = behind[..digits].parse().ok()?;
        Some((behind[digits..].strip_prefix(after)?, Some(rank)))
    })
}
