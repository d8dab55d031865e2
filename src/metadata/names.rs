//! The rules of topic names (`org.apache.kafka.common.internals.Topic`).

/// The longest name, in bytes: with the partition number and a suffix it must still be a file name.
const TOPIC_NAME_BYTES_MAX: usize = 249;

/// Why a text is not a topic name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopicNameError {
    #[error("a topic name cannot be empty")]
    Empty,
    #[error("a topic name cannot be '.' or '..'")]
    Dots,
    #[error("a topic name has at most {TOPIC_NAME_BYTES_MAX} letters, this one has {0}")]
    TooLong(usize),
    #[error("a topic name is made of ASCII letters, digits, '.', '_' and '-', not of {0:?}")]
    Letter(char),
}

pub fn check_topic_name(name: &str) -> Result<(), TopicNameError> {
    match name {
        "" => return Err(TopicNameError::Empty),
        "." | ".." => return Err(TopicNameError::Dots),
        _ => {}
    }
    if name.len() > TOPIC_NAME_BYTES_MAX {
        return Err(TopicNameError::TooLong(name.len()));
    }
    let allowed = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    match name.chars().find(|letter| !allowed(letter)) {
        Some(letter) => Err(TopicNameError::Letter(letter)),
        None => Ok(()),
    }
}

/// Whether the brokers own the topic's contents.
pub fn is_internal_topic(name: &str) -> bool {
    matches!(name, "__consumer_offsets" | "__transaction_state" | "__share_group_state")
}

/// Two names with the same key collide: metrics write `.` and `_` alike. `None` for a name with neither,
/// which collides with nothing.
pub(super) fn collision_key(name: &str) -> Option<String> {
    name.contains(['.', '_']).then(|| name.replace('.', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_kafkas_rules() {
        for good in ["a", "A.b_c-9", "...", "-", &"x".repeat(249)] {
            assert_eq!(check_topic_name(good), Ok(()), "{good}");
        }
        assert_eq!(check_topic_name(""), Err(TopicNameError::Empty));
        assert_eq!(check_topic_name("."), Err(TopicNameError::Dots));
        assert_eq!(check_topic_name(".."), Err(TopicNameError::Dots));
        assert_eq!(check_topic_name(&"x".repeat(250)), Err(TopicNameError::TooLong(250)));
        for bad in ["a b", "a/b", "ü", "a\0", "a:b", "a\n"] {
            assert!(matches!(check_topic_name(bad), Err(TopicNameError::Letter(_))), "{bad}");
        }
    }

    #[test]
    fn dot_and_underscore_collide() {
        assert_eq!(collision_key("a.b"), collision_key("a_b"));
        assert_ne!(collision_key("a.b"), collision_key("a.c"));
        assert_eq!(collision_key("a-b"), None);
    }
}
