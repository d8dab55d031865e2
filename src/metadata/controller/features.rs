//! UpdateFeatures: which levels may be finalized (Kafka's `FeatureControlManager`).

use super::super::command::{FeatureUpdate, Refusal, Response, UpdateFeatures, UpgradeType};
use super::super::features::{self, KRAFT_VERSION, METADATA_VERSION};
use super::super::image::Image;
use super::super::record::Record;
use super::Decision;
use crate::wire::ErrorCode;

/// All updates or none.
pub(super) fn update(image: &Image, request: UpdateFeatures) -> Result<Decision, Refusal> {
    let mut records = Vec::with_capacity(request.updates.len());
    for update in request.updates {
        check(image, &update)?;
        // Of this one Kafka writes nothing either where it stays.
        if update.name == KRAFT_VERSION && update.level <= image.feature(KRAFT_VERSION).unwrap_or(0) {
            continue;
        }
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
    let Some(feature) = features::feature(name) else {
        return refuse("The controller does not support this feature.");
    };
    if !(feature.min..=feature.max).contains(level) {
        return refuse(&format!("The controller only supports versions {}-{}", feature.min, feature.max));
    }
    if let Some(broker) = without(image, name, *level) {
        return refuse(&broker);
    }
    let current = image.feature(name).unwrap_or(0);
    match (*level < current, *level > current, *upgrade == UpgradeType::Upgrade) {
        (true, _, true) => refuse(
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or \
             unsafe downgrade.",
        ),
        (_, true, false) => refuse("Can't downgrade to a newer version."),
        // The log may hold what a node of the lower level cannot read: it would stop.
        (true, ..) if name == METADATA_VERSION => match upgrade {
            UpgradeType::UnsafeDowngrade => {
                refuse("Unsafe metadata downgrade is not supported in this version.")
            }
            _ => refuse(
                "Refusing to perform the requested downgrade because it might delete metadata information.",
            ),
        },
        // Nothing would bring the voters back into the files.
        (true, ..) if name == KRAFT_VERSION => refuse("Can't downgrade the version of this feature."),
        _ => Ok(()),
    }
}

/// A registered node that cannot work at the level, in words; fenced brokers count, too: they may come back. One that has
/// not said at what it can is of a node alone.
fn without(image: &Image, name: &str, level: i16) -> Option<String> {
    let brokers = image.brokers().map(|broker| ("Broker", broker.id, &broker.features));
    let controllers = image.controllers().map(|node| ("Controller", node.id, &node.features));
    let mut nodes = brokers.chain(controllers).filter(|(_, _, features)| !features.is_empty());
    nodes.find_map(|(what, id, features)| match features.iter().find(|range| range.name == name) {
        Some(range) if (range.min..=range.max).contains(&level) => None,
        Some(range) => Some(format!("{what} {id} only supports versions {}-{}", range.min, range.max)),
        None if level == 0 => None,
        None => Some(format!("{what} {id} does not support this feature.")),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Cluster, range_of};
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

    #[test]
    fn the_level_of_the_metadata_is_never_lowered() {
        use UpgradeType::{SafeDowngrade, UnsafeDowngrade, Upgrade};
        let mut cluster = Cluster::of(1);
        assert_eq!(cluster.state.image().feature(METADATA_VERSION), Some(1));
        for (upgrade, words) in [
            (Upgrade, "without setting the upgrade type"),
            (SafeDowngrade, "might delete metadata information"),
            (UnsafeDowngrade, "Unsafe metadata downgrade is not supported"),
        ] {
            let refusal = cluster.run(update(METADATA_VERSION, 0, upgrade, false)).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::InvalidUpdateVersion);
            assert!(refusal.message.contains(words), "{}", refusal.message);
        }
        cluster.run(update(METADATA_VERSION, 1, Upgrade, false)).unwrap();
        assert!(cluster.run(update(METADATA_VERSION, 2, Upgrade, false)).is_err());
    }

    #[test]
    fn no_level_is_finalized_that_a_registered_broker_cannot_work_at() {
        let mut cluster = Cluster::of_many(1);
        let lowered = update(TRANSACTION_VERSION, 1, UpgradeType::SafeDowngrade, false);
        cluster.run(lowered).unwrap();
        let mut old = cluster.registration(2, None);
        range_of(&mut old.features, TRANSACTION_VERSION).max = 1;
        cluster.run(Command::RegisterBroker(old)).unwrap();
        let raised = || update(TRANSACTION_VERSION, 2, UpgradeType::Upgrade, false);
        let refusal = cluster.run(raised()).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidUpdateVersion);
        assert!(refusal.message.ends_with("Broker 2 only supports versions 0-1"), "{}", refusal.message);
        let id = crate::base::BrokerId(2);
        cluster.run(Command::UnregisterBroker { id }).unwrap();
        let mut features = crate::metadata::own_features();
        range_of(&mut features, TRANSACTION_VERSION).max = 1;
        let controller = crate::metadata::ControllerImage {
            id,
            incarnation: uuid::Uuid::from_u128(5),
            endpoints: Vec::new(),
            features,
        };
        let mut register = |controller| cluster.run(Command::RegisterController(controller)).unwrap();
        register(controller.clone());
        let version = cluster.state.image().version();
        let known = cluster.state.image().controller(id).unwrap().features.clone();
        assert!(known.iter().any(|range| range.name == TRANSACTION_VERSION && range.max == 1));
        let refusal = cluster.run(raised()).unwrap_err();
        assert!(refusal.message.ends_with("Controller 2 only supports versions 0-1"), "{}", refusal.message);
        let newer =
            crate::metadata::ControllerImage { features: crate::metadata::own_features(), ..controller };
        cluster.run(Command::RegisterController(newer.clone())).unwrap();
        assert!(cluster.state.image().version() > version);
        cluster.run(raised()).unwrap();
        let again = cluster.controller.handle(
            cluster.state.image(),
            Command::RegisterController(newer.clone()),
            cluster.now,
        );
        assert_eq!(again.unwrap().records, [], "told twice it is written once");
        let bytes = cluster.state.encode();
        let copy = crate::metadata::State::decode(1, &bytes).unwrap();
        assert_eq!(copy.image().controller(id).map(|known| (**known).clone()), Some(newer));
    }
}
