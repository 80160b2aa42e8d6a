//! Embeddable fault-tolerant training runtime.
