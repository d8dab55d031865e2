//! DescribeUserScramCredentials 0 (`ScramImage.describe`, its words too). No user has any, because clients cannot say who
//! they are yet: so it is told, as Kafka tells it of users without. `kafka-configs` asks for them beside quotas of users.

use std::collections::BTreeMap;

use kafka_protocol::messages::describe_user_scram_credentials_response::DescribeUserScramCredentialsResult;
use kafka_protocol::messages::{DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::wire::ErrorCode;

pub async fn describe(request: DescribeUserScramCredentialsRequest) -> DescribeUserScramCredentialsResponse {
    let mut times: BTreeMap<StrBytes, usize> = BTreeMap::new();
    for user in request.users.into_iter().flatten() {
        *times.entry(user.name).or_default() += 1;
    }
    let results = times.into_iter().map(|(user, times)| {
        let (code, words) = match times {
            1 => {
                let words = format!("Attempt to describe a user credential that does not exist: {user}");
                (ErrorCode::ResourceNotFound, words)
            }
            _ => {
                let what = "Cannot describe SCRAM credentials for the same user twice in a single request";
                (ErrorCode::DuplicateResource, format!("{what}: {user}"))
            }
        };
        DescribeUserScramCredentialsResult::default()
            .with_user(user)
            .with_error_code(code.code())
            .with_error_message(Some(StrBytes::from_string(words)))
    });
    DescribeUserScramCredentialsResponse::default().with_error_message(None).with_results(results.collect())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use kafka_protocol::messages::describe_user_scram_credentials_request::UserName;

    use super::*;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    fn described(users: Option<&[&str]>) -> Vec<(String, i16)> {
        let name = |user: &&str| UserName::default().with_name(StrBytes::from_string((*user).to_owned()));
        let users = users.map(|users| users.iter().map(name).collect());
        let request = DescribeUserScramCredentialsRequest::default().with_users(users);
        let response = describe(request).now_or_never().unwrap();
        assert!(guard::encode(0, CorrelationId(1), &response).is_ok());
        assert_eq!(response.error_code, 0);
        response.results.iter().map(|result| (result.user.to_string(), result.error_code)).collect()
    }

    #[test]
    fn nobody_has_credentials() {
        assert_eq!(described(None), []);
        assert_eq!(described(Some(&[])), []);
        let wanted = [("ann".to_owned(), 91), ("bob".to_owned(), 92)];
        assert_eq!(described(Some(&["bob", "ann", "bob"])), wanted);
    }
}
