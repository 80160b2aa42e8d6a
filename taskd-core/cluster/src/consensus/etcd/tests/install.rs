//! Finds Debian's `etcd`, and downloads it into the user's cache directory if the machine has none.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the path of the server's program.
pub(super) fn etcd() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin")]);
    places.map(|dir| dir.join("etcd")).find(|program| program.is_file()).unwrap_or_else(downloaded)
}

/// Downloads the package without installing it: an installed one would also run a service, and needs root.
fn downloaded() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let dir = cache.or_else(home).expect("HOME is set").join("taskd/etcd-server");
    let (program, ready) = (dir.join("usr/bin/etcd"), dir.join("taskd-ready"));
    fs::create_dir_all(&dir).expect("the cache directory can be written");
    let lock = File::create(dir.with_extension("lock")).expect("the cache directory can be written");
    lock.lock().expect("the lock can be taken"); // one of several tests downloads
    if !ready.is_file() {
        let first = download(&dir);
        if !first.status.success() {
            let updated = Command::new("apt-get").args(["-qq", "update"]).output().expect("apt-get runs");
            let second = download(&dir);
            assert!(
                second.status.success(),
                "no `etcd` on this machine, and its package etcd-server cannot be downloaded: install it: {first:?} \
                 {updated:?} {second:?}"
            );
        }
        let unpack = "dpkg -x etcd-server_*.deb . && rm etcd-server_*.deb";
        let unpacked = Command::new("sh").args(["-c", unpack]).current_dir(&dir).output().expect("sh runs");
        assert!(unpacked.status.success() && program.is_file(), "etcd-server cannot be unpacked: {unpacked:?}");
        fs::write(&ready, "").expect("the cache directory can be written");
    }
    program
}

fn download(dir: &Path) -> Output {
    let command = ["-qq", "download", "etcd-server"];
    Command::new("apt-get").args(command).current_dir(dir).output().expect("apt-get runs: this is a Debian machine")
}
