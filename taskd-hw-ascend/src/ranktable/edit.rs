//! Creates server tables from a list of nodes, and patches them when a node is replaced.
//!
//! Results are checked by the rules of `servers`.

use super::fields::Found;
use super::servers::{Device, Server, ServerTable, SuperPod, Version};
use super::{Other, Problems, RankTable, Status};

/// A server for a new rank table, or the replacement for a server of an existing one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewServer {
    /// Name of the server in the table.
    pub server_id: String,
    /// Devices of the server, in ascending order of the ranks that they get in the table.
    pub devices: Vec<NewDevice>,
    /// Name of the super pod to which the server belongs, for version 1.2.
    pub super_pod_id: Option<String>,
    /// Further fields of the server, for example `host_ip`.
    pub other: Other,
}

/// A device of a [`NewServer`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewDevice {
    /// Number of the device on its server.
    pub device_id: u32,
    /// IP address of the device; see [`Device::device_ip`] for when it is required.
    pub device_ip: Option<String>,
    /// Number of the device in its super pod; required in a rank table of version 1.2.
    pub super_device_id: Option<u32>,
}

impl NewDevice {
    fn with_rank(self, rank_id: u32) -> Device {
        let NewDevice { device_id, device_ip, super_device_id } = self;
        Device { device_id, device_ip, rank_id, super_device_id, other: Other::new() }
    }
}

impl ServerTable {
    /// Creates a complete rank table of these servers. The devices get consecutive ranks from 0, in the order of
    /// `servers` and of the devices of each server.
    ///
    /// # Errors
    /// Returns [`Problems`] with all problems if the resulting table breaks a rule of `version`.
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

    /// Returns a copy of the table in which server `new` takes the place of the server named `old`. The devices of
    /// `new` get the ranks of the old server's devices, in order; all other ranks stay the same. The new server is in
    /// the old server's super pod, unless [`super_pod_id`](NewServer::super_pod_id) names another one.
    ///
    /// # Errors
    /// Returns [`Problems`] if the table has no server named `old`, if the two servers differ in their number of
    /// devices, or if the resulting table breaks a rule.
    pub fn replaced(&self, old: &str, new: NewServer) -> Result<ServerTable, Problems> {
        let mut table = self.clone();
        let Some(at) = table.servers.iter().position(|server| server.server_id == old) else {
            return Err(Problems::one("$.server_list", format!("has no server {old:?}")));
        };
        let server = &mut table.servers[at];
        let (has, gets) = (server.devices.len(), new.devices.len());
        if has != gets {
            let what = format!("has {has} devices, but its replacement {:?} has {gets}", new.server_id);
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

    /// Returns a copy of the table in the format of `version`. Fields that `version` does not use are kept: a table
    /// that was converted to version 1.0 still contains its super pods, which version 1.0 ignores, and can be converted
    /// back.
    ///
    /// # Errors
    /// Returns [`Problems`] if the table lacks fields that `version` requires: addresses in version 1.0, super pods in
    /// version 1.2.
    pub fn converted(&self, version: Version) -> Result<ServerTable, Problems> {
        let read = |error: serde_json::Error| Problems::one("$", error.to_string());
        let mut value = serde_json::to_value(self).map_err(read)?;
        value["version"] = serde_json::to_value(version).map_err(read)?;
        match RankTable::from_value(value)? {
            RankTable::Servers(table) => Ok(table),
            _ => Err(Problems::one("$.group_list", "is not allowed in a table of servers".into())),
        }
    }
}
