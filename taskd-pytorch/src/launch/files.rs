//! PyTorch's part of the helper: the Python files that are embedded in the program.

use taskd_core::launch::python::PythonFile;

macro_rules! python_files {
    ($($path:literal)*) => {
        [$(PythonFile { path: $path, text: include_str!(concat!("../../python/", $path)) }),*]
    };
}

/// The files of taskd's Python helper that are specific to PyTorch. [`TorchLauncher`](crate::TorchLauncher) writes them
/// itself; other programs pass them to [`write_helper`](taskd_core::launch::python::write_helper).
pub const PYTHON_FILES: &[PythonFile] = &python_files! {
    "_taskd_framework.py"
    "_taskd_standby_framework.py"
    "taskd/torch/__init__.py"
    "taskd/torch/abort_points.py"
    "taskd/torch/accelerate.py"
    "taskd/torch/background_thread.py"
    "taskd/torch/buffers.py"
    "taskd/torch/codec_types.py"
    "taskd/torch/data/__init__.py"
    "taskd/torch/data/batch_snapshot.py"
    "taskd/torch/data/epoch_collectives.py"
    "taskd/torch/data/loader.py"
    "taskd/torch/data/sources.py"
    "taskd/torch/data/workers.py"
    "taskd/torch/ddp/__init__.py"
    "taskd/torch/ddp/reducer.py"
    "taskd/torch/ddp/unfinished_backward.py"
    "taskd/torch/digest.py"
    "taskd/torch/emergency_checkpoint.py"
    "taskd/torch/engine.py"
    "taskd/torch/framework.py"
    "taskd/torch/fsdp.py"
    "taskd/torch/hooks/__init__.py"
    "taskd/torch/hooks/data_loader.py"
    "taskd/torch/hooks/forward.py"
    "taskd/torch/hooks/optimizer.py"
    "taskd/torch/hooks/save_checkpoint.py"
    "taskd/torch/in_memory_checkpoint.py"
    "taskd/torch/late_buffers.py"
    "taskd/torch/limits.py"
    "taskd/torch/load_checkpoint.py"
    "taskd/torch/numerical/__init__.py"
    "taskd/torch/numerical/checksums.py"
    "taskd/torch/numerical/late.py"
    "taskd/torch/numerical/watch.py"
    "taskd/torch/out_of_memory.py"
    "taskd/torch/process_group/__init__.py"
    "taskd/torch/process_group/abortable.py"
    "taskd/torch/process_group/completion.py"
    "taskd/torch/process_group/gloo.py"
    "taskd/torch/process_group/in_flight.py"
    "taskd/torch/process_group/keep_alive.py"
    "taskd/torch/process_group/names.py"
    "taskd/torch/process_group/nccl.py"
    "taskd/torch/process_group/operations.py"
    "taskd/torch/process_group/options.py"
    "taskd/torch/process_group/rebuild.py"
    "taskd/torch/process_group/record.py"
    "taskd/torch/process_group/record_end.py"
    "taskd/torch/process_group/rendezvous.py"
    "taskd/torch/process_group/sockets.py"
    "taskd/torch/process_group/wrapper.py"
    "taskd/torch/registered_snapshot.py"
    "taskd/torch/registry.py"
    "taskd/torch/rng.py"
    "taskd/torch/standby/__init__.py"
    "taskd/torch/standby/init_process_group.py"
    "taskd/torch/standby/local_collectives.py"
    "taskd/torch/standby/warm_up.py"
    "taskd/torch/state.py"
    "taskd/torch/state_dicts.py"
    "taskd/torch/step_signature.py"
    "taskd/torch/step_snapshot.py"
    "taskd/torch/store_client.py"
    "taskd/torch/store_connect.py"
    "taskd/torch/tracing.py"
    "taskd/torch/transfer.py"
    "taskd/torch/undo.py"
    "taskd/torch/unsupported.py"
    "taskd/torch/zero_grad.py"
};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use taskd_core::launch::python::NEUTRAL_FILES;
    use taskd_core::testing::python::python_files_below;

    use super::*;

    #[test]
    fn embedded_files_are_all_python_files() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        let known = PYTHON_FILES.iter().map(|file| file.path.to_owned()).collect();
        assert_eq!(python_files_below(&dir), known, "a file that is not embedded is missing where the program runs");
        assert!(!NEUTRAL_FILES.iter().any(|neutral| PYTHON_FILES.iter().any(|file| file.path == neutral.path)));
    }
}
