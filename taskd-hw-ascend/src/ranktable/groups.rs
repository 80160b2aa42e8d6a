//! The older format: groups of instances with their devices.
//!
//! An instance is an item of the JSON list `instance_list`. There are two variants of the format. In one, every
//! instance has a single device and states the device's rank (`rank_id`); HCCL calls this variant the lab's and
//! recognizes it by its `deploy_mode`. In the other, an instance is a pod with several devices, and the ranks follow
//! from the order of the devices. The module converts tables of this format into version 1.0.

use super::fields::{Fields, Found, Path, RanksOnce, Unique, in_quotes, in_quotes_if_any};
use super::servers::{Device, Server, ServerTable, Version, check_address};
use super::{Other, Problems, Status};
use serde::{Serialize, Serializer};
use std::collections::BTreeSet;

/// Counters of a group that repeat the number of its devices and servers; checked if present.
const COUNTS: [&str; 2] = ["device_num", "server_num"];

/// A rank table in the `group_list` format. In JSON, its field `group_count` is the number of groups.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupTable {
    /// Completion status of the table.
    pub status: Status,
    /// Groups of the table: `group_list`.
    pub groups: Vec<Group>,
    /// Further fields of the table, kept unchanged, for example `deploy_mode` and `para_plane_nic_name`.
    pub other: Other,
}

/// A group of instances (pods or single devices): an item of a rank table's `group_list`. In JSON, its field
/// `instance_count` is the number of instances.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Name of the group, `group_name`; often the name of the job's task.
    pub group_name: String,
    /// Total number of devices of all instances of the group, `device_count`; `None` if the table does not state it.
    pub device_count: Option<u32>,
    /// Instances of the group: `instance_list`.
    pub instances: Vec<Instance>,
    /// Further fields of the group, kept unchanged.
    pub other: Other,
}

/// An item of a group's `instance_list`: a pod with its devices, or a single device with its rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Instance {
    /// Devices of the instance: `devices`.
    pub devices: Vec<InstanceDevice>,
    /// Rank of the instance's device, `rank_id`, in tables whose instances have exactly one device each. `None` if the
    /// devices themselves state their ranks ([`InstanceDevice::rank_id`]), or if their order in the table defines them.
    #[serde(serialize_with = "in_quotes_if_any", skip_serializing_if = "Option::is_none")]
    pub rank_id: Option<u32>,
    /// Name of the server on which the instance runs: `server_id`.
    pub server_id: String,
    /// Further fields of the instance, kept unchanged, for example `pod_name`.
    #[serde(flatten)]
    pub other: Other,
}

/// A device (NPU) of an [`Instance`] in a rank table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InstanceDevice {
    /// Number of the device on its server: `device_id`.
    #[serde(serialize_with = "in_quotes")]
    pub device_id: u32,
    /// IP address of the device, which may be empty if there is only one server: `device_ip`.
    pub device_ip: String,
    /// Rank of the device: `rank_id`. `None` if the instance states the rank ([`Instance::rank_id`]), or if the order
    /// of the devices in the table defines it.
    #[serde(serialize_with = "in_quotes_if_any", skip_serializing_if = "Option::is_none")]
    pub rank_id: Option<u32>,
    /// Further fields of the device, kept unchanged.
    #[serde(flatten)]
    pub other: Other,
}

impl GroupTable {
    /// Returns all devices of the table, each with the name of its server, sorted by rank. If the table states no
    /// ranks, the devices have the order of the table, which defines their ranks.
    pub fn devices(&self) -> impl Iterator<Item = (&str, &InstanceDevice)> {
        let mut all: Vec<(&Instance, &InstanceDevice)> = Vec::new();
        for instance in self.groups.iter().flat_map(|group| &group.instances) {
            all.extend(instance.devices.iter().map(|device| (instance, device)));
        }
        all.sort_by_key(|(instance, device)| instance.rank_of(device)); // stable: without ranks, the order of the table
        all.into_iter().map(|(instance, device)| (instance.server_id.as_str(), device))
    }

    /// Converts this `group_list` table into a rank table of version 1.0 with the same ranks. The fields in an
    /// instance's `other` become fields of its server.
    ///
    /// # Errors
    /// Returns [`Problems`] if the conversion would lose data: the table does not have exactly one group, two instances
    /// on one server differ in their field `other`, or the field `other` of the group or of a device contains data
    /// besides counts. Also returns [`Problems`] if the resulting table breaks a rule of version 1.0.
    pub fn to_servers(&self) -> Result<ServerTable, Problems> {
        let list = Path::Field(Path::ROOT, "group_list");
        let [group] = self.groups.as_slice() else {
            let what = format!("has {} groups, but version 1.0 has none", self.groups.len());
            return Err(Problems::one(&list.to_string(), what));
        };
        let found = Found::default();
        let has_no_place = |other: &Other, at: &Path<'_>| {
            let names = other.keys().filter(|name| !COUNTS.contains(&name.as_str()));
            names.for_each(|name| found.note(Path::Field(at, name), "has no equivalent in version 1.0"));
        };
        let at = Path::Item(&list, 0);
        has_no_place(&group.other, &at);
        let mut servers: Vec<Server> = Vec::new();
        let instances = Path::Field(&at, "instance_list");
        let mut next = 0..;
        for (index, instance) in group.instances.iter().enumerate() {
            let at = Path::Item(&instances, index);
            let devices = Path::Field(&at, "devices");
            let mut here = Vec::new();
            for ((index, device), place) in instance.devices.iter().enumerate().zip(&mut next) {
                has_no_place(&device.other, &Path::Item(&devices, index));
                here.push(device.with_rank(instance.rank_of(device).unwrap_or(place)));
            }
            match servers.iter_mut().find(|server| server.server_id == instance.server_id) {
                None => servers.push(Server {
                    devices: here,
                    server_id: instance.server_id.clone(),
                    other: instance.other.clone(),
                }),
                Some(server) if server.other == instance.other => server.devices.extend(here),
                Some(_) => {
                    let what = format!("is {} a second time, with other further fields", instance.server_id);
                    found.note(Path::Field(&at, "server_id"), what);
                }
            }
        }
        let mut other = self.other.clone();
        other.insert("group_name".into(), group.group_name.clone().into());
        let version = Version::V1_0;
        let table = ServerTable { status: self.status, version, servers, super_pods: Vec::new(), other };
        table.check(&found);
        found.unless_any(Some(table))
    }

    pub(super) fn read(mut fields: Fields<'_>, status: Status) -> Option<GroupTable> {
        let count = fields.quoted("group_count");
        let groups = fields.objects("group_list", Group::read);
        let (count, groups) = (count?, groups?);
        if count as usize != groups.len() {
            return fields.wrong("group_count", format!("is {count}, but there are {} groups", groups.len()));
        }
        let found = fields.found();
        let table = GroupTable { status, groups, other: fields.rest() };
        table.check(found);
        Some(table)
    }

    /// Records all problems of the table.
    pub(super) fn check(&self, found: &Found) {
        let list = Path::Field(Path::ROOT, "group_list");
        if self.devices().next().is_none() {
            found.note(list, "has no device");
        }
        let mut numbers = Unique::new();
        let mut ranks = RanksOnce::of(self.devices().count());
        let instances = || self.groups.iter().flat_map(|group| &group.instances);
        let servers: BTreeSet<&str> = instances().map(|instance| instance.server_id.as_str()).collect();
        let says_ranks = instances().any(|one| one.devices.iter().any(|device| one.rank_of(device).is_some()));
        for (index, group) in self.groups.iter().enumerate() {
            let at = Path::Item(&list, index);
            group.check_counts(at, found);
            let has: usize = group.instances.iter().map(|instance| instance.devices.len()).sum();
            if let Some(count) = group.device_count.filter(|count| *count as usize != has) {
                found.note(Path::Field(&at, "device_count"), format!("is {count}, but there are {has} devices"));
            }
            let instances = Path::Field(&at, "instance_list");
            for (index, instance) in group.instances.iter().enumerate() {
                let at = Path::Item(&instances, index);
                if instance.server_id.is_empty() {
                    found.note(Path::Field(&at, "server_id"), "is empty");
                }
                let devices = Path::Field(&at, "devices");
                if instance.rank_id.is_some() && instance.devices.len() != 1 {
                    let what = format!("is the rank of one device, but there are {}", instance.devices.len());
                    found.note(Path::Field(&at, "rank_id"), what);
                }
                for (index, device) in instance.devices.iter().enumerate() {
                    let of_instance = Path::Field(&at, "rank_id");
                    let at = Path::Item(&devices, index);
                    let number = format!("{} of {}", device.device_id, instance.server_id);
                    numbers.add(number, Path::Field(&at, "device_id"), found);
                    if servers.len() > 1 || !device.device_ip.is_empty() {
                        check_address(Some(&device.device_ip), Path::Field(&at, "device_ip"), found);
                    }
                    let of_device = Path::Field(&at, "rank_id");
                    let said_at = if device.rank_id.is_some() { of_device } else { of_instance };
                    match instance.rank_of(device) {
                        Some(rank) => ranks.add(rank, said_at, found),
                        None if says_ranks => found.note(said_at, "is missing, but other devices have one"),
                        None => {}
                    }
                }
            }
        }
    }
}

impl Group {
    fn read(mut fields: Fields<'_>) -> Option<Group> {
        let group_name = fields.text("group_name");
        let device_count = fields.quoted_if_any("device_count");
        let count = fields.quoted("instance_count");
        let instances = fields.objects("instance_list", Instance::read);
        let (group_name, device_count, count, instances) = (group_name?, device_count?, count?, instances?);
        if count as usize != instances.len() {
            return fields.wrong("instance_count", format!("is {count}, but there are {} instances", instances.len()));
        }
        Some(Group { group_name, device_count, instances, other: fields.rest() })
    }

    /// Records a problem for each count that the group states and that differs from the actual number.
    fn check_counts(&self, at: Path<'_>, found: &Found) {
        let devices: usize = self.instances.iter().map(|instance| instance.devices.len()).sum();
        let servers: BTreeSet<&str> = self.instances.iter().map(|instance| instance.server_id.as_str()).collect();
        for (name, has, of_what) in [(COUNTS[0], devices, "devices"), (COUNTS[1], servers.len(), "servers")] {
            let said = self.other.get(name).filter(|said| said.as_str() != Some(has.to_string().as_str()));
            if let Some(said) = said {
                found.note(Path::Field(&at, name), format!("is {said}, but there are {has} {of_what}"));
            }
        }
    }
}

impl Instance {
    fn read(mut fields: Fields<'_>) -> Option<Instance> {
        let (server_id, rank_id) = (fields.text("server_id"), fields.quoted_if_any("rank_id"));
        let devices = fields.objects("devices", InstanceDevice::read);
        Some(Instance { devices: devices?, rank_id: rank_id?, server_id: server_id?, other: fields.rest() })
    }

    /// Returns the rank of a device of this instance, if the table states it.
    fn rank_of(&self, device: &InstanceDevice) -> Option<u32> {
        device.rank_id.or(self.rank_id)
    }
}

impl InstanceDevice {
    fn read(mut fields: Fields<'_>) -> Option<InstanceDevice> {
        let (device_id, device_ip) = (fields.quoted("device_id"), fields.text("device_ip"));
        let rank_id = fields.quoted_if_any("rank_id");
        let (device_id, device_ip, rank_id) = (device_id?, device_ip?, rank_id?);
        Some(InstanceDevice { device_id, device_ip, rank_id, other: fields.rest() })
    }

    fn with_rank(&self, rank_id: u32) -> Device {
        let device_ip = Some(self.device_ip.clone());
        Device { device_id: self.device_id, device_ip, rank_id, super_device_id: None, other: Other::new() }
    }
}

impl Serialize for GroupTable {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            status: Status,
            group_count: String,
            group_list: &'a [Group],
            #[serde(flatten)]
            other: &'a Other,
        }
        let (group_count, group_list) = (self.groups.len().to_string(), self.groups.as_slice());
        Written { status: self.status, group_count, group_list, other: &self.other }.serialize(to)
    }
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            group_name: &'a str,
            #[serde(serialize_with = "in_quotes_if_any", skip_serializing_if = "Option::is_none")]
            device_count: Option<u32>,
            instance_count: String,
            instance_list: &'a [Instance],
            #[serde(flatten)]
            other: &'a Other,
        }
        let Group { group_name, device_count, instances, other } = self;
        let (device_count, instance_count) = (*device_count, instances.len().to_string());
        Written { group_name, device_count, instance_count, instance_list: instances, other }.serialize(to)
    }
}
