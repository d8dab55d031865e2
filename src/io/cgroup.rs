//! What the control group of this process grants, version 2 or 1. Limits hold for all groups above too, so
//! the smallest counts. A limit that cannot be read is none: there may be no cgroup at all.

use std::path::{Path, PathBuf};

/// CPU time per time, in cores. `root` is `/` but for tests.
pub(super) fn cpu_quota(root: &Path) -> Option<f64> {
    let unified = groups(root, "", "sys/fs/cgroup").filter_map(|group| {
        let text = std::fs::read_to_string(group.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        cores(quota, period)
    });
    let own = groups(root, "cpu", "sys/fs/cgroup/cpu").filter_map(|group| {
        let quota = std::fs::read_to_string(group.join("cpu.cfs_quota_us")).ok()?;
        let period = std::fs::read_to_string(group.join("cpu.cfs_period_us")).ok()?;
        cores(&quota, &period)
    });
    unified.chain(own).reduce(f64::min)
}

/// Memory in bytes.
pub(super) fn memory_limit(root: &Path) -> Option<u64> {
    let bytes = |file: PathBuf| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let unified = groups(root, "", "sys/fs/cgroup").filter_map(|group| bytes(group.join("memory.max")));
    let own = groups(root, "memory", "sys/fs/cgroup/memory");
    unified.chain(own.filter_map(|group| bytes(group.join("memory.limit_in_bytes")))).min()
}

fn cores(quota: &str, period: &str) -> Option<f64> {
    // No limit is `max` in version 2 and -1 in version 1.
    let quota: f64 = quota.trim().parse().ok()?;
    let period: f64 = period.trim().parse().ok()?;
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// The directories of this process's group and all above it, for one controller of version 1 or, with an
/// empty name, version 2. Within a container the named group may not be visible; the mount itself is its own
/// then, and comes last here.
fn groups(root: &Path, controller: &str, mount: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let mount = root.join(mount);
    let table = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let own = table.lines().find_map(|line| {
        // hierarchy:controllers:path
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        controllers.split(',').any(|name| name == controller).then(|| path.trim_start_matches('/').to_owned())
    });
    let own = own.map(|own| mount.join(own));
    let chain: Vec<PathBuf> = match &own {
        Some(own) => {
            own.ancestors().take_while(|group| group.starts_with(&mount)).map(PathBuf::from).collect()
        }
        None => Vec::new(),
    };
    chain.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, contents) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, contents).unwrap();
        }
        root
    }

    #[test]
    fn version_2_takes_the_smallest_limit_on_the_way_up() {
        let root = tree(&[
            ("proc/self/cgroup", "0::/a.slice/b.service\n"),
            ("sys/fs/cgroup/a.slice/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/a.slice/memory.max", "max\n"),
            ("sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/a.slice/b.service/memory.max", "1000000\n"),
        ]);
        assert_eq!(cpu_quota(root.path()), Some(1.5));
        assert_eq!(memory_limit(root.path()), Some(1_000_000));
    }

    #[test]
    fn version_1_reads_each_controller() {
        let root = tree(&[
            ("proc/self/cgroup", "7:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n1:name=systemd:/\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n"),
            ("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "4096\n"),
        ]);
        assert_eq!(cpu_quota(root.path()), Some(4.0));
        assert_eq!(memory_limit(root.path()), Some(4096));
    }

    #[test]
    fn no_limit_is_none() {
        let root = tree(&[
            ("proc/self/cgroup", "3:cpu:/x\n0::/\n"),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(cpu_quota(root.path()), None);
        assert_eq!(memory_limit(root.path()), None);
        assert_eq!(cpu_quota(&root.path().join("nothing")), None);
    }
}
