//! The older form: groups of instances (pods) with their devices. Ranks follow from the order in which they stand.
//!
//! It knows nothing of the other forms but how to become one of version 1.0.

use super::edit::{NewDevice, NewServer};
use super::fields::{Fields, Found, Path, Unique, in_quotes, in_quotes_if_any};
use super::servers::{ServerTable, Version, check_address};
use super::{Other, Problems, Status};
use serde::{Serialize, Serializer};

/// A table of groups. `group_count` is written as there are groups.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupTable {
    /// How far it is.
    pub status: Status,
    /// `group_list`.
    pub groups: Vec<Group>,
    /// What has no rule: `deploy_mode` and `para_plane_nic_name`, for instance.
    pub other: Other,
}

/// A group, in `group_list`. `instance_count` is written as there are instances.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// `group_name`: often that of the job's task.
    pub group_name: String,
    /// `device_count`, where it is said: the devices of all instances.
    pub device_count: Option<u32>,
    /// `instance_list`.
    pub instances: Vec<Instance>,
    /// What has no rule.
    pub other: Other,
}

/// An instance, in `instance_list`: a pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Instance {
    /// `devices`.
    pub devices: Vec<InstanceDevice>,
    /// `server_id`.
    pub server_id: String,
    /// What has no rule: `pod_name`, for instance.
    #[serde(flatten)]
    pub other: Other,
}

/// A device of an instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InstanceDevice {
    /// `device_id`: its number on the server.
    #[serde(serialize_with = "in_quotes")]
    pub device_id: u32,
    /// `device_ip`.
    pub device_ip: String,
    /// What has no rule.
    #[serde(flatten)]
    pub other: Other,
}

impl GroupTable {
    /// All devices with their servers, by rank.
    pub fn devices(&self) -> impl Iterator<Item = (&str, &InstanceDevice)> {
        let instances = self.groups.iter().flat_map(|group| &group.instances);
        instances.flat_map(|instance| instance.devices.iter().map(|device| (instance.server_id.as_str(), device)))
    }

    /// The same ranks as a table of version 1.0. What stands beside an instance then stands beside its server.
    ///
    /// # Errors
    /// Where something would be lost: two instances on one server, several groups, or what stands beside a group or a device.
    pub fn to_servers(&self) -> Result<ServerTable, Problems> {
        let list = Path::Field(Path::ROOT, "group_list");
        let [group] = self.groups.as_slice() else {
            let what = format!("has {} groups, and version 1.0 has none", self.groups.len());
            return Err(Problems::one(&list.to_string(), what));
        };
        let found = Found::default();
        let has_no_place = |other: &Other, at: &Path<'_>| {
            other.keys().for_each(|name| found.note(Path::Field(at, name), "has no place in version 1.0"));
        };
        let at = Path::Item(&list, 0);
        has_no_place(&group.other, &at);
        let mut names = Unique::new();
        let instances = Path::Field(&at, "instance_list");
        for (index, instance) in group.instances.iter().enumerate() {
            let at = Path::Item(&instances, index);
            names.add(&instance.server_id, Path::Field(&at, "server_id"), &found);
            let devices = Path::Field(&at, "devices");
            for (index, device) in instance.devices.iter().enumerate() {
                has_no_place(&device.other, &Path::Item(&devices, index));
            }
        }
        found.unless_any(Some(()))?;
        let server = |instance: &Instance| NewServer {
            server_id: instance.server_id.clone(),
            devices: instance.devices.iter().map(InstanceDevice::as_new).collect(),
            super_pod_id: None,
            other: instance.other.clone(),
        };
        let mut table = ServerTable::new(Version::V1_0, group.instances.iter().map(server))?;
        table.status = self.status;
        table.other = self.other.clone();
        table.other.insert("group_name".into(), group.group_name.clone().into());
        Ok(table)
    }

    pub(super) fn read(mut fields: Fields<'_>, status: Status) -> Option<GroupTable> {
        let count = fields.quoted("group_count");
        let groups = fields.objects("group_list", Group::read);
        let (count, groups) = (count?, groups?);
        if count as usize != groups.len() {
            return fields.wrong("group_count", format!("is {count}, and there are {} groups", groups.len()));
        }
        let found = fields.found();
        let table = GroupTable { status, groups, other: fields.rest() };
        table.check(found);
        Some(table)
    }

    /// Notes everything that is wrong with it.
    pub(super) fn check(&self, found: &Found) {
        let list = Path::Field(Path::ROOT, "group_list");
        if self.devices().next().is_none() {
            found.note(list, "has no device");
        }
        let mut numbers = Unique::new();
        for (index, group) in self.groups.iter().enumerate() {
            let at = Path::Item(&list, index);
            let has: usize = group.instances.iter().map(|instance| instance.devices.len()).sum();
            if let Some(count) = group.device_count.filter(|count| *count as usize != has) {
                found.note(Path::Field(&at, "device_count"), format!("is {count}, and there are {has} devices"));
            }
            let instances = Path::Field(&at, "instance_list");
            for (index, instance) in group.instances.iter().enumerate() {
                let at = Path::Item(&instances, index);
                if instance.server_id.is_empty() {
                    found.note(Path::Field(&at, "server_id"), "is empty");
                }
                let devices = Path::Field(&at, "devices");
                for (index, device) in instance.devices.iter().enumerate() {
                    let at = Path::Item(&devices, index);
                    let number = format!("{} of {}", device.device_id, instance.server_id);
                    numbers.add(number, Path::Field(&at, "device_id"), found);
                    check_address(Some(&device.device_ip), Path::Field(&at, "device_ip"), found);
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
            return fields.wrong("instance_count", format!("is {count}, and there are {} instances", instances.len()));
        }
        Some(Group { group_name, device_count, instances, other: fields.rest() })
    }
}

impl Instance {
    fn read(mut fields: Fields<'_>) -> Option<Instance> {
        let server_id = fields.text("server_id");
        let devices = fields.objects("devices", InstanceDevice::read);
        Some(Instance { devices: devices?, server_id: server_id?, other: fields.rest() })
    }
}

impl InstanceDevice {
    fn read(mut fields: Fields<'_>) -> Option<InstanceDevice> {
        let (device_id, device_ip) = (fields.quoted("device_id"), fields.text("device_ip"));
        Some(InstanceDevice { device_id: device_id?, device_ip: device_ip?, other: fields.rest() })
    }

    fn as_new(&self) -> NewDevice {
        NewDevice { device_id: self.device_id, device_ip: Some(self.device_ip.clone()), super_device_id: None }
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
