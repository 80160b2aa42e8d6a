//! The purpose of a process group, from the names that frameworks give it.

use crate::model::GroupRole;

impl GroupRole {
    /// Returns the purpose that a group's name or description states, and [`GroupRole::Unknown`] if it states none or
    /// several.
    ///
    /// A name is split where it changes between letters and other characters. Known words, in any case: `dp`, `ddp`,
    /// `fsdp`, `data`, `replicate`, `shard` (`dp_1`, `DATA_PARALLEL_GROUP` of Megatron, `mesh_dp_shard` of a device mesh),
    /// `tp`, `tensor`, `mp`, `pp`, `pipe`, `pipeline`, `cp`, `context`, `ep`, `exp`, `expert`; for all ranks `default`,
    /// `world`, and the name `0`, which torch gives its first group.
    #[must_use]
    pub fn of_name(name: &str) -> GroupRole {
        if name == "0" {
            return GroupRole::World;
        }
        let mut found = GroupRole::Unknown;
        for word in name.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty()) {
            let role = match word.to_ascii_lowercase().as_str() {
                "dp" | "ddp" | "fsdp" | "data" | "replicate" | "shard" => GroupRole::Data,
                "tp" | "tensor" | "mp" => GroupRole::Tensor,
                "pp" | "pipe" | "pipeline" => GroupRole::Pipeline,
                "cp" | "context" => GroupRole::Context,
                "ep" | "exp" | "expert" => GroupRole::Expert,
                "default" | "world" => GroupRole::World,
                _ => continue,
            };
            if found != GroupRole::Unknown && found != role {
                return GroupRole::Unknown; // such as tp-dp-cp: a group of several dimensions
            }
            found = role;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_names_of_frameworks_state_the_purpose() {
        let known = [
            ("dp", GroupRole::Data),
            ("dp_1", GroupRole::Data),
            ("DATA_PARALLEL_GROUP", GroupRole::Data),
            ("mesh_tp", GroupRole::Tensor),
            ("TENSOR_MODEL_PARALLEL_GROUP", GroupRole::Tensor),
            ("pp-2", GroupRole::Pipeline),
            ("cp", GroupRole::Context),
            ("exp", GroupRole::Expert),
            ("default_pg", GroupRole::World),
            ("0", GroupRole::World),
            ("mesh_dp_shard", GroupRole::Data),
            ("PIPELINE_MODEL_PARALLEL_GROUP", GroupRole::Pipeline),
            ("undefined", GroupRole::Unknown),
            ("EXPERT_DATA_PARALLEL_GROUP", GroupRole::Unknown),
            ("tp-dp-cp", GroupRole::Unknown),
            ("group_name_12", GroupRole::Unknown),
            ("", GroupRole::Unknown),
            ("7", GroupRole::Unknown),
        ];
        for (name, role) in known {
            assert_eq!(GroupRole::of_name(name), role, "{name}");
        }
    }
}
