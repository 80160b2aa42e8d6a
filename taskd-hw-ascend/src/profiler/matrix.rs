//! Transfers over single links from `communication_matrix.json`.

use super::communication::operation;
use super::{Reading, json, step_number};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use taskd_core::analysis::model::{LinkKind, LinkTransfer};

/// Links by step, then by `p2p` or `collective`, then by `{operation}-total@group`, then by `source-destination`.
type Document = BTreeMap<String, BTreeMap<String, BTreeMap<String, BTreeMap<String, Link>>>>;

#[derive(Deserialize)]
struct Link {
    #[serde(rename = "Transport Type", default)]
    transport: String,
    #[serde(rename = "Transit Size(MB)", default)]
    size_mb: f64,
    #[serde(rename = "Transit Time(ms)", default)]
    time_ms: f64,
}

impl Link {
    fn kind(&self) -> LinkKind {
        match self.transport.as_str() {
            "HCCS" | "HCCS_SW" => LinkKind::Hccs,
            "RDMA" | "ROCE" => LinkKind::Rdma,
            "SDMA" => LinkKind::Sdma,
            "PCIE" => LinkKind::Pcie,
            "SIO" => LinkKind::Sio,
            "LOCAL" => LinkKind::Local,
            _ => LinkKind::Unknown,
        }
    }
}

/// Adds the sums over each link (`total`) of a step and operation to the rank's first communication of this step,
/// operation and group: the file does not distribute them over the single operators.
///
/// Ranks in the file are positions in the group; a link of a group without known members is counted as missing.
pub(super) fn read(reading: &mut Reading, file: File) -> Result<(), String> {
    let document: Document = json(file)?;
    let mut unknown = 0_u64;
    for (step, kinds) in &document {
        let step = step_number(step);
        for (name, links) in kinds.values().flatten() {
            let Some((operator, group)) = name.split_once("-total@") else { continue };
            let group = reading.group(group);
            let members = group.and_then(|at| reading.trace.groups.get(at as usize)).map(|group| group.members.clone());
            let mut transfers = Vec::new();
            for (pair, link) in links {
                match transfer(pair, link, members.as_deref().unwrap_or_default()) {
                    Some(transfer) => transfers.push(transfer),
                    None => unknown += 1,
                }
            }
            let operation = reading.trace.names.intern(operation(operator).0);
            let communications = reading.trace.communications.iter_mut().zip(&reading.steps_of_communications);
            let mut of_step = communications.filter(|(_, of)| **of == step);
            match of_step.find(|(c, _)| c.operation == operation && c.group == group && c.links.is_empty()) {
                Some((communication, _)) => communication.links = transfers,
                None => unknown += transfers.len() as u64,
            }
        }
    }
    if unknown > 0 {
        reading.miss(format!("{unknown} links of communication_matrix.json belong to no known group or operator"));
    }
    Ok(())
}

fn transfer(pair: &str, link: &Link, members: &[u32]) -> Option<LinkTransfer> {
    let (source, destination) = pair.split_once('-')?;
    let global = |local: &str| members.get(local.parse::<usize>().ok()?).copied();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the casts saturate, which is meant")]
    let (bytes, transit_ns) = ((link.size_mb * 1e6).round() as u64, (link.time_ms * 1e6).round() as u64);
    Some(LinkTransfer {
        source: global(source)?,
        destination: global(destination)?,
        link: link.kind(),
        bytes,
        transit_ns,
    })
}
