//! Rank tables 1.0 and 1.2: servers with their devices and, in 1.2, their super pods.

use super::fields::{Fields, Found, Path, RanksOnce, Unique, in_quotes, in_quotes_if_any};
use super::{Other, Status};
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Exclusive limit for the length of a server's name in bytes.
const SERVER_ID_BYTES: usize = 64;

/// Version of a rank table that lists servers. The version determines the rules for the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Version {
    /// Version 1.0: every device has an IP address if the table has several servers.
    #[serde(rename = "1.0")]
    V1_0,
    /// Version 1.2: every server belongs to a super pod, and every device has a number in its super pod.
    #[serde(rename = "1.2")]
    V1_2,
}

/// A rank table of version 1.0 or 1.2. In JSON, its field `server_count` is the number of servers.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerTable {
    /// Completion status of the table.
    pub status: Status,
    /// Version of the table, which determines its rules.
    pub version: Version,
    /// Servers of the table: `server_list`.
    pub servers: Vec<Server>,
    /// Super pods of the table, empty in version 1.0: `super_pod_list`.
    pub super_pods: Vec<SuperPod>,
    /// Further fields of the table, kept unchanged.
    pub other: Other,
}

/// A server with its devices: an item of a rank table's `server_list`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Server {
    /// Devices of the server: `device`.
    #[serde(rename = "device")]
    pub devices: Vec<Device>,
    /// Name of the server, unique in the table and often an IP address: `server_id`.
    pub server_id: String,
    /// Further fields of the server, kept unchanged, for example `host_ip`, `container_ip` and `hardware_type`.
    #[serde(flatten)]
    pub other: Other,
}

/// A device (NPU) with its rank: an item of a server's list `device`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// Number of the device on its server: `device_id`.
    #[serde(serialize_with = "in_quotes")]
    pub device_id: u32,
    /// IP address of the device, `device_ip`: required in version 1.0 if the table has several servers, and in version
    /// 1.2 if it has several super pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_ip: Option<String>,
    /// Rank of the device: `rank_id`.
    #[serde(serialize_with = "in_quotes")]
    pub rank_id: u32,
    /// Number of the device in its super pod, `super_device_id`: required in version 1.2, `None` in version 1.0.
    #[serde(serialize_with = "in_quotes_if_any", skip_serializing_if = "Option::is_none")]
    pub super_device_id: Option<u32>,
    /// Further fields of the device, kept unchanged, for example `device_port` and `backup_device_ip`.
    #[serde(flatten)]
    pub other: Other,
}

/// A super pod with its servers: an item of a rank table's `super_pod_list`.
#[derive(Clone, Debug, PartialEq)]
pub struct SuperPod {
    /// Name of the super pod: `super_pod_id`.
    pub super_pod_id: String,
    /// Servers of the super pod, `server_list`: for each list item, the `server_id` and the item's further fields.
    pub servers: Vec<(String, Other)>,
    /// Further fields of the super pod, kept unchanged.
    pub other: Other,
}

impl ServerTable {
    pub(super) fn read(mut fields: Fields<'_>, status: Status) -> Option<ServerTable> {
        let version = match fields.text("version")?.as_str() {
            "1.0" => Version::V1_0,
            "1.2" => Version::V1_2,
            other => return fields.wrong("version", format!("is {other:?}, but must be 1.0, 1.2 or 2.0")),
        };
        let count = fields.quoted("server_count");
        let servers = fields.objects("server_list", |server| Server::read(server, version));
        let super_pods = match version {
            Version::V1_0 => Some(Vec::new()),
            Version::V1_2 => fields.objects("super_pod_list", SuperPod::read),
        };
        let (count, servers, super_pods) = (count?, servers?, super_pods?);
        if count as usize != servers.len() {
            return fields.wrong("server_count", format!("is {count}, but there are {} servers", servers.len()));
        }
        let found = fields.found();
        let table = ServerTable { status, version, servers, super_pods, other: fields.rest() };
        table.check(found);
        Some(table)
    }

    /// Records all problems of the table.
    pub(super) fn check(&self, found: &Found) {
        let list = Path::Field(Path::ROOT, "server_list");
        if self.servers.is_empty() {
            found.note(list, "is empty");
        }
        let needs_address = self.super_pods.len() > 1 || self.version == Version::V1_0 && self.servers.len() > 1;
        let mut names = Unique::new();
        let mut ranks = RanksOnce::of(self.servers.iter().map(|server| server.devices.len()).sum());
        for (index, server) in self.servers.iter().enumerate() {
            let at = Path::Item(&list, index);
            server.check_name(Path::Field(&at, "server_id"), found);
            names.add(&server.server_id, Path::Field(&at, "server_id"), found);
            let devices = Path::Field(&at, "device");
            if server.devices.is_empty() {
                found.note(devices, "is empty");
            }
            let mut numbers = Unique::new();
            for (index, device) in server.devices.iter().enumerate() {
                let at = Path::Item(&devices, index);
                numbers.add(device.device_id, Path::Field(&at, "device_id"), found);
                ranks.add(device.rank_id, Path::Field(&at, "rank_id"), found);
                let address = device.device_ip.as_deref();
                // A single server needs no addresses. Any text other than "" there is an error of the operator.
                if needs_address || self.version == Version::V1_0 && address.is_some_and(|address| !address.is_empty())
                {
                    check_address(address, Path::Field(&at, "device_ip"), found);
                }
                if (self.version == Version::V1_2) != device.super_device_id.is_some() {
                    let what = if self.version == Version::V1_2 { "is missing" } else { "belongs to version 1.2" };
                    found.note(Path::Field(&at, "super_device_id"), what);
                }
            }
        }
        self.check_super_pods(found);
    }

    /// Checks, for version 1.2, that every server is in exactly one super pod, in which its devices' numbers are
    /// unique.
    fn check_super_pods(&self, found: &Found) {
        let list = Path::Field(Path::ROOT, "super_pod_list");
        match (self.version, self.super_pods.is_empty()) {
            (Version::V1_0, true) => return,
            (Version::V1_0, false) => return found.note(list, "belongs to version 1.2"),
            (Version::V1_2, _) => {}
        }
        let by_name: BTreeMap<&str, (usize, &Server)> = self
            .servers
            .iter()
            .enumerate()
            .map(|(index, server)| (server.server_id.as_str(), (index, server)))
            .collect();
        let (mut pods, mut placed) = (Unique::new(), Unique::new());
        let mut homeless: BTreeSet<&str> = by_name.keys().copied().collect();
        let all = Path::Field(Path::ROOT, "server_list");
        for (index, pod) in self.super_pods.iter().enumerate() {
            let at = Path::Item(&list, index);
            pods.add(&pod.super_pod_id, Path::Field(&at, "super_pod_id"), found);
            let servers = Path::Field(&at, "server_list");
            let mut numbers = Unique::new();
            for (index, (id, _)) in pod.servers.iter().enumerate() {
                let at = Path::Item(&servers, index);
                placed.add(id, Path::Field(&at, "server_id"), found);
                let Some((server_at, server)) = by_name.get(id.as_str()) else {
                    found.note(Path::Field(&at, "server_id"), format!("is {id:?}, which is no server of server_list"));
                    continue;
                };
                homeless.remove(id.as_str());
                let server_at = Path::Item(&all, *server_at);
                let devices = Path::Field(&server_at, "device");
                for (index, device) in server.devices.iter().enumerate() {
                    let at = Path::Item(&devices, index);
                    let Some(number) = device.super_device_id else { continue };
                    numbers.add(number, Path::Field(&at, "super_device_id"), found);
                }
            }
        }
        for id in homeless {
            let at = Path::Item(&all, by_name[id].0);
            found.note(Path::Field(&at, "server_id"), format!("is {id:?}, which is in no super pod"));
        }
    }
}

impl Server {
    fn read(mut fields: Fields<'_>, version: Version) -> Option<Server> {
        let server_id = fields.text("server_id");
        let devices = fields.objects("device", |device| Device::read(device, version));
        Some(Server { devices: devices?, server_id: server_id?, other: fields.rest() })
    }

    fn check_name(&self, at: Path<'_>, found: &Found) {
        let bytes = self.server_id.len();
        if bytes == 0 {
            found.note(at, "is empty");
        } else if bytes >= SERVER_ID_BYTES {
            found.note(at, format!("has {bytes} bytes, but must have fewer than {SERVER_ID_BYTES}"));
        }
    }
}

impl Device {
    fn read(mut fields: Fields<'_>, version: Version) -> Option<Device> {
        let device_id = fields.quoted("device_id");
        let device_ip = fields.text_if_any("device_ip");
        let rank_id = fields.quoted("rank_id");
        let super_device_id = match version {
            Version::V1_0 => Some(None), // has no rule there
            Version::V1_2 => fields.quoted_if_any("super_device_id"),
        };
        let (device_id, device_ip, rank_id) = (device_id?, device_ip?, rank_id?);
        Some(Device { device_id, device_ip, rank_id, super_device_id: super_device_id?, other: fields.rest() })
    }
}

impl SuperPod {
    fn read(mut fields: Fields<'_>) -> Option<SuperPod> {
        let super_pod_id = fields.text("super_pod_id");
        let servers = fields.objects("server_list", |mut server| Some((server.text("server_id")?, server.rest())));
        Some(SuperPod { super_pod_id: super_pod_id?, servers: servers?, other: fields.rest() })
    }
}

/// Records an address that is missing or invalid. Operators write the name of an error there if they have no address.
pub(super) fn check_address(address: Option<&str>, at: Path<'_>, found: &Found) {
    match address {
        None => found.note(at, "is missing"),
        Some(address) if address.parse::<IpAddr>().is_err() => {
            found.note(at, format!("is {address:?}, which is no IP address"));
        }
        Some(_) => {}
    }
}

impl Serialize for ServerTable {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            status: Status,
            server_list: &'a [Server],
            server_count: String,
            version: Version,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            super_pod_list: &'a [SuperPod],
            #[serde(flatten)]
            other: &'a Other,
        }
        let ServerTable { status, version, servers, super_pods, other } = self;
        let (status, version, server_count) = (*status, *version, servers.len().to_string());
        Written { status, server_list: servers, server_count, version, super_pod_list: super_pods, other }.serialize(to)
    }
}

impl Serialize for SuperPod {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Named<'a> {
            server_id: &'a str,
            #[serde(flatten)]
            other: &'a Other,
        }
        #[derive(Serialize)]
        struct Written<'a> {
            super_pod_id: &'a str,
            server_list: Vec<Named<'a>>,
            #[serde(flatten)]
            other: &'a Other,
        }
        let server_list = self.servers.iter().map(|(server_id, other)| Named { server_id, other }).collect();
        Written { super_pod_id: &self.super_pod_id, server_list, other: &self.other }.serialize(to)
    }
}
