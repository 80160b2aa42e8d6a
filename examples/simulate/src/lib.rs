//! Holds the example program `simulate`, which is the content of this package.
