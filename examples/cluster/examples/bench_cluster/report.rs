//! The figures of a run, as a table and as JSON.

use serde::Serialize;
use std::fmt;

/// Times of the broadcasts of one kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Broadcast {
    /// From the order until it has arrived at 99 of 100 agents.
    pub(crate) p99_ms: f64,
    /// From the order until all agents have answered.
    pub(crate) answered_ms: f64,
    /// Processor time of the manager for one.
    pub(crate) manager_cpu_ms: f64,
}

/// The figures of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) agents: u32,
    pub(crate) fanout: u32,
    pub(crate) lease_interval_ms: u128,
    pub(crate) lease_ms: u128,
    pub(crate) register_s: f64,
    pub(crate) register_cpu_s: f64,
    pub(crate) world_s: f64,
    pub(crate) decide_s: f64,
    pub(crate) start_s: Option<f64>,
    pub(crate) lease_cpu_percent: f64,
    pub(crate) broadcast: Broadcast,
    pub(crate) broadcast_relayed: Broadcast,
    pub(crate) broadcast_relayed_first_ms: f64,
    pub(crate) relay_counts: String,
    pub(crate) fault_to_all_direct_p99_ms: f64,
    pub(crate) fault_to_all_p99_ms: f64,
    pub(crate) lost_agent_s: f64,
    pub(crate) falsely_lost: usize,
    /// Number of agents whose lease ended before the manager was killed, and after that.
    pub(crate) fenced: u64,
    pub(crate) failover_fenced: u64,
    /// Connections beyond the first of each agent, before the manager was killed.
    pub(crate) reconnections: u64,
    /// The machine's load of the last minute at the end.
    pub(crate) load: f64,
    pub(crate) manager_rss_mib: f64,
    pub(crate) manager_rss_peak_mib: f64,
    pub(crate) elected_s: f64,
    pub(crate) failover_s: f64,
    pub(crate) failover_cpu_s: f64,
    pub(crate) etcd: Option<ChangeOfManager>,
    pub(crate) torch: Option<TorchStore>,
}

/// The figures of a run with another consensus engine.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct ChangeOfManager {
    pub(crate) register_s: f64,
    pub(crate) world_s: f64,
    pub(crate) elected_s: f64,
    pub(crate) failover_s: f64,
}

/// Times of torch's `TCPStore`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct TorchStore {
    /// Number of clients that were to connect.
    pub(crate) wanted: u32,
    /// Number of clients that had a connection at the same time.
    pub(crate) clients: u32,
    /// Until each client had connected and set a key.
    pub(crate) register_s: f64,
    /// Until each client had read a key that was set once: a broadcast.
    pub(crate) broadcast_ms: f64,
    /// Memory of the server's process, with Python and torch.
    pub(crate) rss_mib: f64,
    /// What of it came with the clients.
    pub(crate) rss_of_clients_mib: f64,
}

impl Row {
    /// Returns the figures by their names in JSON, in order.
    fn figures(&self) -> Vec<(&'static str, f64)> {
        let mut figures = vec![
            ("agents", f64::from(self.agents)),
            ("lease_interval_ms", self.lease_interval_ms as f64),
            ("lease_ms", self.lease_ms as f64),
            ("register_s", self.register_s),
            ("register_manager_cpu_s", self.register_cpu_s),
            ("world_s", self.world_s),
            ("decide_s", self.decide_s),
            ("lease_cpu_percent", self.lease_cpu_percent),
            ("broadcast_p99_ms", self.broadcast.p99_ms),
            ("broadcast_answered_ms", self.broadcast.answered_ms),
            ("broadcast_manager_cpu_ms", self.broadcast.manager_cpu_ms),
            ("broadcast_relayed_p99_ms", self.broadcast_relayed.p99_ms),
            ("broadcast_relayed_answered_ms", self.broadcast_relayed.answered_ms),
            ("broadcast_relayed_manager_cpu_ms", self.broadcast_relayed.manager_cpu_ms),
            ("broadcast_relayed_first_ms", self.broadcast_relayed_first_ms),
            ("relay_fanout", f64::from(self.fanout)),
            ("fault_to_all_direct_p99_ms", self.fault_to_all_direct_p99_ms),
            ("fault_to_all_p99_ms", self.fault_to_all_p99_ms),
            ("lost_agent_s", self.lost_agent_s),
            ("falsely_lost", self.falsely_lost as f64),
            ("fenced", self.fenced as f64),
            ("reconnections", self.reconnections as f64),
            ("manager_rss_mib", self.manager_rss_mib),
            ("manager_rss_peak_mib", self.manager_rss_peak_mib),
            ("elected_s", self.elected_s),
            ("failover_s", self.failover_s),
            ("failover_manager_cpu_s", self.failover_cpu_s),
            ("failover_fenced", self.failover_fenced as f64),
            ("load", self.load),
        ];
        figures.extend(self.start_s.map(|start_s| ("start_s", start_s)));
        if let Some(etcd) = &self.etcd {
            figures.extend([
                ("etcd_register_s", etcd.register_s),
                ("etcd_world_s", etcd.world_s),
                ("etcd_elected_s", etcd.elected_s),
                ("etcd_failover_s", etcd.failover_s),
            ]);
        }
        if let Some(torch) = &self.torch {
            figures.extend([
                ("torch_store_wanted", f64::from(torch.wanted)),
                ("torch_store_clients", f64::from(torch.clients)),
                ("torch_store_register_s", torch.register_s),
                ("torch_store_broadcast_ms", torch.broadcast_ms),
                ("torch_store_rss_mib", torch.rss_mib),
                ("torch_store_rss_of_clients_mib", torch.rss_of_clients_mib),
            ]);
        }
        figures
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures().iter().try_for_each(|(name, value)| writeln!(f, "{name:<34} {value:>12.3}"))?;
        write!(f, "{}", self.relay_counts)
    }
}

impl Serialize for Row {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.figures())
    }
}

/// The figures of all runs.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Growth {
    pub(crate) rows: Vec<Row>,
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<Vec<(&str, f64)>> = self.rows.iter().map(Row::figures).collect();
        // A run may lack figures of another: those of the longest name the lines.
        for (name, _) in columns.iter().max_by_key(|column| column.len()).into_iter().flatten() {
            write!(f, "{name:<34}")?;
            for column in &columns {
                let figure = column.iter().find(|(of, _)| of == name).map(|(_, value)| *value);
                write!(f, " {:>12}", figure.map_or("-".into(), |value| format!("{value:.3}")))?;
            }
            writeln!(f)?;
        }
        self.rows.iter().try_for_each(|row| writeln!(f, "{} agents: {}", row.agents, row.relay_counts))
    }
}
