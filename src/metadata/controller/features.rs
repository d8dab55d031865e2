//! UpdateFeatures: which levels may be finalized (Kafka's `FeatureControlManager`).

use super::super::command::{FeatureUpdate, Refusal, Response, UpdateFeatures, UpgradeType};
use super::super::features::FEATURES;
use super::super::image::Image;
use super::super::record::Record;
use super::Decision;
use crate::wire::ErrorCode;

/// All updates or none.
pub(super) fn update(image: &Image, request: UpdateFeatures) -> Result<Decision, Refusal> {
    let mut records = Vec::with_capacity(request.updates.len());
    for update in request.updates {
        check(image, &update)?;
        records.push(Record::Feature { name: update.name, level: update.level });
    }
    if request.validate_only {
        records.clear();
    }
    Ok(Decision { records, response: Response::Done })
}

fn check(image: &Image, update: &FeatureUpdate) -> Result<(), Refusal> {
    let FeatureUpdate { name, level, upgrade } = update;
    let refuse = |reason: &str| {
        let message = format!("Invalid update version {level} for feature {name}. {reason}");
        Err(Refusal::new(ErrorCode::InvalidUpdateVersion, message))
    };
    if *upgrade == UpgradeType::Unknown {
        return refuse("The controller does not support the given upgrade type.");
    }
    if *level < 0 {
        return refuse("A feature version cannot be less than 0.");
    }
    let Some(feature) = FEATURES.iter().find(|feature| feature.name == name) else {
        return refuse("The controller does not support this feature.");
    };
    if !(feature.min..=feature.max).contains(level) {
        return refuse(&format!("The controller only supports versions {}-{}", feature.min, feature.max));
    }
    let current = image.feature(name).unwrap_or(0);
    match (*level < current, *level > current, *upgrade == UpgradeType::Upgrade) {
        (true, _, true) => refuse(
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or \
             unsafe downgrade.",
        ),
        (_, true, false) => refuse("Can't downgrade to a newer version."),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Cluster;
    use super::*;
    use crate::metadata::{Command, GROUP_VERSION, TRANSACTION_VERSION, below_initial};

    fn update(name: &str, level: i16, upgrade: UpgradeType, validate_only: bool) -> Command {
        let update = FeatureUpdate { name: name.to_owned(), level, upgrade };
        Command::UpdateFeatures(UpdateFeatures { updates: vec![update], validate_only })
    }

    #[test]
    fn a_new_cluster_has_the_newest_features_and_they_can_be_lowered_and_raised() {
        use UpgradeType::{SafeDowngrade, Unknown, Upgrade};
        let mut cluster = Cluster::of(2);
        let level = |cluster: &Cluster| cluster.state.image().feature(TRANSACTION_VERSION);
        assert_eq!(level(&cluster), Some(2));
        let below = |cluster: &Cluster| -> Vec<(&str, i16)> {
            let below = below_initial(cluster.state.image());
            below.into_iter().map(|(feature, level)| (feature.name, level)).collect()
        };
        assert_eq!(below(&cluster), []);
        for (name, level, upgrade) in [
            (TRANSACTION_VERSION, 3, Upgrade),
            (TRANSACTION_VERSION, -1, SafeDowngrade),
            (TRANSACTION_VERSION, 1, Upgrade),
            (TRANSACTION_VERSION, 1, Unknown),
            ("nonsense", 1, Upgrade),
        ] {
            let refusal = cluster.run(update(name, level, upgrade, false)).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::InvalidUpdateVersion, "{name} {level}");
        }
        cluster.run(update(TRANSACTION_VERSION, 0, SafeDowngrade, true)).unwrap();
        assert_eq!(level(&cluster), Some(2), "validated only");
        cluster.run(update(TRANSACTION_VERSION, 0, SafeDowngrade, false)).unwrap();
        assert_eq!(level(&cluster), None);
        assert!(cluster.run(update(TRANSACTION_VERSION, 1, SafeDowngrade, false)).is_err());
        cluster.run(update(TRANSACTION_VERSION, 1, Upgrade, false)).unwrap();
        assert_eq!(level(&cluster), Some(1));
        assert_eq!(cluster.state.image().feature(GROUP_VERSION), Some(1));
        cluster.run(update(GROUP_VERSION, 0, SafeDowngrade, false)).unwrap();
        assert!(cluster.run(update(GROUP_VERSION, 2, Upgrade, false)).is_err());
        // A broker that comes later changes nothing.
        cluster.register(3);
        assert_eq!(level(&cluster), Some(1));
        assert_eq!(cluster.state.image().feature(GROUP_VERSION), None);
        assert_eq!(below(&cluster), [(GROUP_VERSION, 0), (TRANSACTION_VERSION, 1)]);
    }
}
