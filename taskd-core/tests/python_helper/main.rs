//! What runs inside of Python ranks of every framework, in real Python processes.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod bytes;
mod copies;
mod launcher;
mod mishaps;
mod package;
mod pieces;
mod plain;
mod sealed;
mod second_copies;
mod silence;
mod sitecustomize;
mod words;
mod wrappers;
