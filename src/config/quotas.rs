//! What client quotas need of the broker properties (`quota.*`, `controller.quota.*`).

use super::settings::Settings;
use crate::base::Windows;

/// How rates are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaSettings {
    pub windows: Windows,
    /// Of `controller_mutation_rate`.
    pub controller_windows: Windows,
    /// Measured apart at the same time, by quota.
    pub clients_max: u32,
}

impl QuotaSettings {
    pub(super) fn new(s: &Settings) -> Self {
        let windows = |num: &str, seconds: &str| Windows::new(s.number(num), s.number(seconds));
        Self {
            windows: windows("quota.window.num", "quota.window.size.seconds"),
            controller_windows: windows(
                "controller.quota.window.num",
                "controller.quota.window.size.seconds",
            ),
            clients_max: s.number("kuring.quota.clients.max"),
        }
    }
}
