//! Tables of servers that are made from a list of nodes, or patched when a node was replaced.
//!
//! What comes out is checked by the rules of `servers`; it has none of its own.

use super::fields::Found;
use super::servers::{Device, Server, ServerTable, SuperPod, Version};
use super::{Other, Problems, RankTable, Status};

/// A server that a table is made from, or that takes another one's place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewServer {
    /// Its name in the table.
    pub server_id: String,
    /// In the order of the ranks that they get.
    pub devices: Vec<NewDevice>,
    /// For version 1.2: the super pod that it is in.
    pub super_pod_id: Option<String>,
    /// What else is to stand beside it: `host_ip`, for instance.
    pub other: Other,
}

/// A device of a [`NewServer`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewDevice {
    /// Its number on the server.
    pub device_id: u32,
    /// Its address.
    pub device_ip: Option<String>,
    /// For version 1.2: its number in the super pod.
    pub super_device_id: Option<u32>,
}

impl NewDevice {
    fn with_rank(self, rank_id: u32) -> Device {
        let NewDevice { device_id, device_ip, super_device_id } = self;
        Device { device_id, device_ip, rank_id, super_device_id, other: Other::new() }
    }
}

impl ServerTable {
    /// Makes a table in which the devices have the ranks 0 and up, in the order in which they stand here.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn new(version: Version, servers: impl IntoIterator<Item = NewServer>) -> Result<ServerTable, Problems> {
        let mut table = ServerTable {
            status: Status::Completed,
            version,
            servers: Vec::new(),
            super_pods: Vec::new(),
            other: Other::new(),
        };
        let mut ranks = 0..;
        for server in servers {
            let NewServer { server_id, devices, super_pod_id, other } = server;
            table.enter_super_pod(&server_id, super_pod_id);
            let devices = devices.into_iter().zip(&mut ranks).map(|(device, rank)| device.with_rank(rank));
            table.servers.push(Server { devices: devices.collect(), server_id, other });
        }
        let found = Found::default();
        table.check(&found);
        found.unless_any(Some(table))
    }

    fn enter_super_pod(&mut self, server_id: &str, super_pod_id: Option<String>) {
        let Some(super_pod_id) = super_pod_id else { return };
        let server = (server_id.to_owned(), Other::new());
        match self.super_pods.iter_mut().find(|pod| pod.super_pod_id == super_pod_id) {
            Some(pod) => pod.servers.push(server),
            None => self.super_pods.push(SuperPod { super_pod_id, servers: vec![server], other: Other::new() }),
        }
    }

    /// The table with one server in the place of another: its devices get that one's ranks, in their order. Nobody else's
    /// rank changes. It stays in the same super pod unless it says which other one.
    ///
    /// # Errors
    /// There is no server of the old name, the new one has another number of devices, or what is wrong with the table
    /// that comes out. The table stays as it was.
    pub fn replaced(&self, old: &str, new: NewServer) -> Result<ServerTable, Problems> {
        let mut table = self.clone();
        let Some(at) = table.servers.iter().position(|server| server.server_id == old) else {
            return Err(Problems::one("$.server_list", format!("has no server {old:?}")));
        };
        let server = &mut table.servers[at];
        let (has, gets) = (server.devices.len(), new.devices.len());
        if has != gets {
            let what = format!("has {has} devices, and {:?}, which is to replace it, has {gets}", new.server_id);
            return Err(Problems::one(&format!("$.server_list[{at}].device"), what));
        }
        let NewServer { server_id, devices, super_pod_id, other } = new;
        let ranks = std::mem::take(&mut server.devices).into_iter().map(|device| device.rank_id);
        server.devices = devices.into_iter().zip(ranks).map(|(device, rank)| device.with_rank(rank)).collect();
        (server.server_id, server.other) = (server_id.clone(), other);
        for pod in &mut table.super_pods {
            let moves = super_pod_id.as_ref().is_some_and(|id| *id != pod.super_pod_id);
            pod.servers.retain(|(id, _)| id != old || !moves);
            pod.servers.iter_mut().filter(|(id, _)| id == old).for_each(|(id, _)| id.clone_from(&server_id));
        }
        if !table.super_pods.iter().any(|pod| pod.servers.iter().any(|(id, _)| *id == server_id)) {
            table.enter_super_pod(&server_id, super_pod_id);
        }
        table.super_pods.retain(|pod| !pod.servers.is_empty());
        let found = Found::default();
        table.check(&found);
        found.unless_any(Some(table))
    }

    /// The same table by the rules of another version. What that has no rule for is kept: a table that became one of version
    /// 1.0 still names its super pods, which nobody reads there, and can become what it was.
    ///
    /// # Errors
    /// What the other version needs and is not there: addresses in 1.0, super pods in 1.2.
    pub fn converted(&self, version: Version) -> Result<ServerTable, Problems> {
        let read = |error: serde_json::Error| Problems::one("$", error.to_string());
        let mut value = serde_json::to_value(self).map_err(read)?;
        value["version"] = serde_json::to_value(version).map_err(read)?;
        match RankTable::from_value(value)? {
            RankTable::Servers(table) => Ok(table),
            _ => Err(Problems::one("$.group_list", "stands in a table of servers".into())),
        }
    }
}
