//! From voters that every node's file names to voters that the metadata log names (`kraft.version` 0 to 1, KIP-853): what
//! has to be known of them before. Kafka's leader has it from each voter's UpdateRaftVoter; here it is in the log (a
//! controller's registration, its directory) and in the file that all have. Lives on shard 0.

use std::collections::BTreeMap;

use super::types::{Entry, Member, Membership, Seat};
use crate::base::BrokerId;
use crate::metadata::{Command, Image, KRAFT, KRAFT_VERSION, Record, Refusal};
use crate::peer::Links;
use crate::wire::ErrorCode;

/// Whether `command` raises the cluster that `image` shows; with `Some(true)` it only asks whether it could be.
pub fn is_asked(command: &Command, image: &Image) -> Option<bool> {
    let Command::UpdateFeatures(request) = command else { return None };
    let is_it = request.updates.iter().any(|update| update.name == KRAFT_VERSION && update.level > 0);
    (is_it && !image.voters_change()).then_some(request.validate_only)
}

/// Whether some entry does it.
pub fn is_in(entries: &[Entry]) -> bool {
    let raises = |record: &Record| matches!(record, Record::Feature { name, level } if name == KRAFT_VERSION && *level > 0);
    let records = entries.iter().filter_map(|entry| match &entry.payload {
        openraft::EntryPayload::Normal(proposal) => Some(&proposal.records),
        _ => None,
    });
    records.into_iter().any(|records| records.iter().any(raises))
}

/// All members with the directory and the address that each has; refused where one has not told what it can, or where it is.
pub fn members(
    membership: &Membership,
    image: &Image,
    links: &Links,
) -> Result<BTreeMap<Seat, Member>, Refusal> {
    let (own, met, addresses) = (links.identity(), links.roster().unpinned(), links.roster().controllers());
    let directory = |node: BrokerId| match node == own.node {
        true => Some(own.directory),
        false => met.get(&node).copied(),
    };
    let mut members = BTreeMap::new();
    for (seat, member) in membership.nodes() {
        let node = member.node;
        let Some(controller) = image.controller(node) else {
            let text = format!(
                "Invalid update version {} for feature {KRAFT_VERSION}. controller {node} has not registered, and may not \
                 support this feature",
                KRAFT.max
            );
            return Err(Refusal::new(ErrorCode::InvalidUpdateVersion, text));
        };
        let supports =
            controller.features.iter().any(|range| range.name == KRAFT_VERSION && range.max >= KRAFT.max);
        let pinned = Some(member.directory).filter(|directory| !directory.is_nil());
        let directory = pinned.or_else(|| directory(node));
        let (true, Some(directory), Some(address)) = (supports, directory, addresses.get(&node)) else {
            let text = format!(
                "Invalid upgrade of {KRAFT_VERSION} to KRAFT_VERSION_{} because not all of the voters support it",
                KRAFT.max
            );
            return Err(Refusal::new(ErrorCode::InvalidUpdateVersion, text));
        };
        members.insert(*seat, Member { node, directory, address: Some(address.clone()) });
    }
    Ok(members)
}

/// Of a node that has no others.
pub fn alone() -> Refusal {
    let text = format!(
        "Invalid update version {} for feature {KRAFT_VERSION}. This node is alone: it has no listener by which other \
         controllers could reach it.",
        KRAFT.max
    );
    Refusal::new(ErrorCode::InvalidUpdateVersion, text)
}
