//! What was reported of each card, as lines of text.
//!
//! It only keeps and prints.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use taskd_core::job::{Domain, Name};
use taskd_core::trace::{Fact, Signal};
use taskd_hw_cuda::health::{GpuIdentity, metric as m};
use taskd_hw_cuda::xid::{XID, XidTable};

/// All cards.
#[derive(Debug)]
pub(super) struct Table {
    xids: XidTable,
    devices: BTreeMap<Domain, Device>,
    pub(super) xids_seen: u64,
    pub(super) lost: u64,
}

#[derive(Debug, Default)]
struct Device {
    identity: GpuIdentity,
    figures: BTreeMap<Name, f64>,
    trouble: Option<String>,
}

/// One card in the account.
#[derive(Debug, Serialize)]
pub(super) struct Card {
    device: String,
    model: String,
    uuid: String,
    pci: String,
    figures: BTreeMap<String, f64>,
    trouble: Option<String>,
}

impl Table {
    pub(super) fn new(xids: XidTable) -> Table {
        Table { xids, devices: BTreeMap::new(), xids_seen: 0, lost: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Takes a fact; returns a line of text if it is an event.
    pub(super) fn take(&mut self, fact: &Fact) -> Option<String> {
        let is_device = matches!(fact.about, Domain::Device(..));
        match &fact.signal {
            Signal::Metric { name, value } if is_device => {
                self.devices.entry(fact.about.clone()).or_default().figures.insert(name.clone(), *value);
                None
            }
            Signal::Ext(ext) => {
                let identity = ext.get::<GpuIdentity>()?.ok()?;
                let line = format!("+  {}: {}, {}, at {}", fact.about, identity.model, identity.uuid, identity.pci);
                let device = self.devices.entry(fact.about.clone()).or_default();
                (device.identity, device.trouble) = (identity, None);
                Some(line)
            }
            Signal::Error(error) => {
                let mut line = format!("!  {}: {} {}: {}", fact.about, error.family, error.code, error.text);
                if error.family == XID {
                    self.xids_seen += 1;
                    line.push_str(&self.explain(error.code.as_str()));
                }
                if is_device {
                    let trouble = format!("{} {}", error.family, error.code);
                    self.devices.entry(fact.about.clone()).or_default().trouble = Some(trouble);
                }
                Some(line)
            }
            Signal::Lost { count } => {
                self.lost += count;
                Some(format!("!  {count} facts were lost"))
            }
            _ => None,
        }
    }

    fn explain(&self, code: &str) -> String {
        let entry = code.parse().ok().and_then(|code| self.xids.get(code));
        let known = |entry: &taskd_hw_cuda::xid::Entry| {
            format!("\n     {}. NVIDIA: {} ({})", entry.name, entry.action.sentence(), entry.action)
        };
        entry.map_or_else(|| "\n     It is not in the table.".to_owned(), known)
    }

    pub(super) fn cards(&self) -> Vec<Card> {
        let card = |(about, device): (&Domain, &Device)| Card {
            device: about.to_string(),
            model: device.identity.model.clone(),
            uuid: device.identity.uuid.clone(),
            pci: device.identity.pci.clone(),
            figures: device.figures.iter().map(|(name, value)| (name.to_string(), *value)).collect(),
            trouble: device.trouble.clone(),
        };
        self.devices.iter().map(card).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<26} {:>6} {:>6} {:>7} {:>5} {:>10} {:>7} {:>7}  trouble",
            "device", "°C", "mem °C", "W", "util", "memory MiB", "ECC cor", "ECC unc"
        )?;
        for (about, device) in &self.devices {
            let figure = |name: &Name, scale: f64| {
                device.figures.get(name).map_or_else(|| "-".to_owned(), |value| format!("{:.0}", value / scale))
            };
            let trouble = device.trouble.as_deref().unwrap_or("none");
            writeln!(
                f,
                "{:<26} {:>6} {:>6} {:>7} {:>5} {:>10} {:>7} {:>7}  {trouble}",
                about.to_string(),
                figure(&m::TEMPERATURE, 1.0),
                figure(&m::MEMORY_TEMPERATURE, 1.0),
                figure(&m::POWER, 1.0),
                figure(&m::UTILIZATION, 1.0),
                figure(&m::MEMORY_USED, 1_048_576.0),
                figure(&m::ECC_CORRECTED_VOLATILE, 1.0),
                figure(&m::ECC_UNCORRECTED_VOLATILE, 1.0),
            )?;
        }
        Ok(())
    }
}
