//! Which CPUs this process may use: affinity, the cgroup's quota, `kuring.cpus`.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::cgroup;

/// The CPUs at hand.
#[derive(Clone, PartialEq, Debug)]
pub struct Cpus {
    /// By affinity and list, ascending, at least one.
    pub allowed: Vec<usize>,
    /// What the cgroup grants, in cores; may be less than the CPUs allowed.
    pub quota: Option<f64>,
}

/// A list of CPUs that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no list of CPUs: numbers and ranges like 0-3,8 are wanted")]
pub struct InvalidCpuList(pub String);

/// A CPU of a list that the process may not use.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("CPU {cpu} is not among those this process may use: {allowed:?}")]
pub struct CpuNotAllowed {
    pub cpu: usize,
    pub allowed: Vec<usize>,
}

/// Asks the system.
pub fn available() -> io::Result<Cpus> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let allowed: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    if allowed.is_empty() {
        return Err(io::Error::other("this process may run on no CPU that can be counted"));
    }
    Ok(Cpus { allowed, quota: cgroup::cpu_quota(Path::new("/")) })
}

/// Reads `0-3,8`: ascending, each once.
pub fn parse_list(text: &str) -> Result<Vec<usize>, InvalidCpuList> {
    let invalid = || InvalidCpuList(text.to_owned());
    let number = |text: &str| {
        let number = text.trim().parse().ok();
        number.filter(|cpu| *cpu < rustix::thread::CpuSet::MAX_CPU).ok_or_else(invalid)
    };
    let mut cpus = BTreeSet::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last {
                    return Err(invalid());
                }
                cpus.extend(first..=last);
            }
            None => {
                cpus.insert(number(part)?);
            }
        }
    }
    Ok(cpus.into_iter().collect())
}

impl Cpus {
    /// Only the CPUs of a list, for nodes that share a host.
    pub fn restricted_to(self, list: &[usize]) -> Result<Self, CpuNotAllowed> {
        match list.iter().find(|cpu| !self.allowed.contains(cpu)) {
            Some(cpu) => Err(CpuNotAllowed { cpu: *cpu, allowed: self.allowed }),
            None => Ok(Self { allowed: list.to_vec(), quota: self.quota }),
        }
    }

    /// One shard per CPU, not more than whole cores of the quota: file threads need the rest of it, and a
    /// throttled shard stands still for up to 100 ms.
    pub fn shard_count(&self) -> usize {
        let granted = self.quota.map_or(usize::MAX, |cores| cores as usize);
        self.allowed.len().min(granted).max(1)
    }

    /// The CPU to pin a shard to. `None` when there are more shards than CPUs, or when a quota below the
    /// CPUs lets other processes have them too: the scheduler places the shards better then.
    pub fn pin(&self, shard: usize, shards: usize) -> Option<usize> {
        let shared = self.quota.is_some_and(|cores| cores < self.allowed.len() as f64);
        if shards > self.allowed.len() || shared { None } else { self.allowed.get(shard).copied() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_is_read_as_the_kernel_writes_it() {
        assert_eq!(parse_list("0-3,8").unwrap(), [0, 1, 2, 3, 8]);
        assert_eq!(parse_list("5, 1-2 ,2").unwrap(), [1, 2, 5]);
        for wrong in ["", "a", "3-1", "1-", "-1", "0,,1", "99999", "0-99999"] {
            assert_eq!(parse_list(wrong), Err(InvalidCpuList(wrong.to_owned())));
        }
    }

    #[test]
    fn shards_follow_the_cpus_and_the_quota() {
        let cpus = |count, quota| Cpus { allowed: (0..count).collect(), quota };
        assert_eq!(cpus(8, None).shard_count(), 8);
        assert_eq!(cpus(8, Some(2.5)).shard_count(), 2);
        assert_eq!(cpus(8, Some(0.5)).shard_count(), 1);
        assert_eq!(cpus(2, Some(4.0)).shard_count(), 2);
    }

    #[test]
    fn shards_are_pinned_only_where_each_has_a_cpu_of_its_own() {
        let cpus = Cpus { allowed: vec![2, 5], quota: None };
        assert_eq!([cpus.pin(0, 2), cpus.pin(1, 2)], [Some(2), Some(5)]);
        assert_eq!(cpus.pin(0, 3), None);
        assert_eq!(Cpus { quota: Some(1.0), ..cpus.clone() }.pin(0, 1), None);
        assert_eq!(Cpus { quota: Some(2.0), ..cpus.clone() }.pin(0, 1), Some(2));
        assert_eq!(cpus.clone().restricted_to(&[5]).unwrap().allowed, [5]);
        assert_eq!(cpus.clone().restricted_to(&[1]).unwrap_err().cpu, 1);
    }

    #[test]
    fn this_machine_has_a_cpu() {
        let cpus = available().unwrap();
        assert!(cpus.shard_count() >= 1 && cpus.shard_count() <= cpus.allowed.len());
    }
}
