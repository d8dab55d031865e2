//! Listeners and what is told to clients about them: the texts of `listeners`, `advertised.listeners` and
//! `listener.security.protocol.map` as checked values, by the rules of Kafka's `KafkaConfig`. Resolves no
//! name and opens nothing.

use std::fmt;
use std::sync::Arc;

/// The name of a listener, in capitals: Kafka's names do not mind the case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerName(Arc<str>);

impl ListenerName {
    pub fn new(name: &str) -> Self {
        Self(name.to_uppercase().into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ListenerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a listener speaks. Only what kuring serves: the other three stop the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SecurityProtocol {
    Plaintext,
}

impl SecurityProtocol {
    /// Kafka's number (`SecurityProtocol.id`).
    pub fn wire_id(self) -> i16 {
        match self {
            SecurityProtocol::Plaintext => 0,
        }
    }
}

/// A host and a port. No host: every interface where one listens, this machine's name where it is told to
/// clients. Port 0 takes a free one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
}

/// An address to listen on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    pub name: ListenerName,
    pub protocol: SecurityProtocol,
    /// Empty: every interface.
    pub host: String,
    /// 0: any free port.
    pub port: u16,
    /// What clients of this listener are told; `None` if it is left out of `advertised.listeners`, or is for controllers and
    /// not in it.
    pub advertised: Option<Endpoint>,
}

impl Listener {
    /// The endpoint for clients once the listener is bound to `port`: a missing host becomes `hostname`,
    /// port 0 the bound one.
    pub fn advertised_endpoint(&self, bound_port: u16, hostname: &str) -> Option<Endpoint> {
        let Endpoint { host, port } = self.advertised.as_ref()?;
        let host = if host.is_empty() { hostname } else { host };
        Some(Endpoint { host: host.to_owned(), port: if *port == 0 { bound_port } else { *port } })
    }
}

/// The texts that together say how the broker is reached.
pub(super) struct ListenerTexts<'a> {
    pub listeners: &'a [String],
    pub advertised: Option<&'a [String]>,
    pub protocol_map: &'a str,
    pub protocol_map_is_set: bool,
    pub controller_names: &'a [String],
    pub inter_broker_name: Option<&'a str>,
    pub inter_broker_protocol: &'a str,
    pub inter_broker_protocol_is_set: bool,
    /// The node has the role controller.
    pub is_controller: bool,
    /// And the role broker; without, it has no listener but those for controllers.
    pub is_broker: bool,
}

/// The result of [`ListenerTexts::check`].
pub(super) struct Listeners {
    pub listeners: Vec<Listener>,
    pub controller_listeners: Vec<Listener>,
    pub inter_broker: ListenerName,
}

/// The property at fault and what is wrong with it.
pub(super) struct Fault {
    pub name: &'static str,
    pub reason: String,
}

impl ListenerTexts<'_> {
    pub(super) fn check(&self) -> Result<Listeners, Fault> {
        let protocols = self.protocols()?;
        let endpoints = named_endpoints("listeners", self.listeners)?;
        check_distinct("listeners", &endpoints, true)?;
        let controller_names: Vec<_> =
            self.controller_names.iter().map(|name| ListenerName::new(name)).collect();
        if !self.is_broker
            && let Some((name, _)) = endpoints.iter().find(|(name, _)| !controller_names.contains(name))
        {
            let reason =
                format!("{name} is none of controller.listener.names, and process.roles is controller alone");
            return Err(Fault { name: "listeners", reason });
        }
        for (name, _) in &endpoints {
            protocol_of(&protocols, "listeners", name)?;
        }
        let listens = endpoints.iter().any(|(name, _)| controller_names.contains(name));
        if let Some(first) = controller_names.first()
            && self.is_controller != listens
        {
            let reason = match listens {
                true => "must not be in listeners where process.roles is broker alone".to_owned(),
                false => format!("none of these names is in listeners; add {first}://host:port there"),
            };
            return Err(Fault { name: "controller.listener.names", reason });
        }
        let mut advertised = match self.advertised {
            None => {
                let clients = endpoints.iter().filter(|(name, _)| !controller_names.contains(name));
                clients.cloned().collect()
            }
            Some(texts) => named_endpoints("advertised.listeners", texts)?,
        };
        if !self.is_broker {
            // Those of the brokers say nothing here, as in Kafka.
            advertised.retain(|(name, _)| controller_names.contains(name));
        }
        check_distinct("advertised.listeners", &advertised, false)?;
        for (name, endpoint) in &advertised {
            protocol_of(&protocols, "advertised.listeners", name)?;
            check_routable(endpoint, self.advertised.is_some())?;
            if !endpoints.iter().any(|(listener, _)| listener == name) {
                let reason = format!("{name} is not in listeners; every advertised name must be");
                return Err(Fault { name: "advertised.listeners", reason });
            }
        }

        let mut checked = Vec::with_capacity(endpoints.len());
        for (name, Endpoint { host, port }) in endpoints {
            let protocol = protocol_of(&protocols, "listeners", &name)?;
            let told =
                advertised.iter().find(|(other, _)| *other == name).map(|(_, endpoint)| endpoint.clone());
            checked.push(Listener { name, protocol, host, port, advertised: told });
        }
        let (controller_listeners, listeners): (Vec<_>, Vec<_>) =
            checked.into_iter().partition(|listener| controller_names.contains(&listener.name));
        if listeners.is_empty() && self.is_broker {
            let reason = "none is left for clients: all are controller listeners".to_owned();
            return Err(Fault { name: "listeners", reason });
        }
        let inter_broker = match self.is_broker {
            true => self.inter_broker(&listeners)?,
            // It is where the brokers are.
            false => ListenerName::new(self.inter_broker_name.unwrap_or("PLAINTEXT")),
        };
        Ok(Listeners { listeners, controller_listeners, inter_broker })
    }

    /// The protocol of each name. Controller listeners need no entry while the map is not set.
    fn protocols(&self) -> Result<Vec<(ListenerName, String)>, Fault> {
        const NAME: &str = "listener.security.protocol.map";
        let mut protocols = Vec::new();
        for pair in self.protocol_map.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((listener, protocol)) = pair.rsplit_once(':') else {
                let reason = format!("{pair:?} is not a pair; wanted: NAME:PROTOCOL,NAME:PROTOCOL…");
                return Err(Fault { name: NAME, reason });
            };
            let protocol = protocol.trim().to_uppercase();
            if !["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"].contains(&protocol.as_str()) {
                let reason = format!("{protocol:?} is not a protocol; kuring speaks PLAINTEXT only");
                return Err(Fault { name: NAME, reason });
            }
            protocols.push((ListenerName::new(listener.trim()), protocol));
        }
        if !self.protocol_map_is_set {
            for name in self.controller_names {
                protocols.push((ListenerName::new(name), "PLAINTEXT".to_owned()));
            }
        }
        Ok(protocols)
    }

    fn inter_broker(&self, listeners: &[Listener]) -> Result<ListenerName, Fault> {
        const NAME: &str = "inter.broker.listener.name";
        const PROTOCOL: &str = "security.inter.broker.protocol";
        let advertised = || listeners.iter().filter(|listener| listener.advertised.is_some());
        let names: Vec<_> = advertised().map(|listener| listener.name.as_str()).collect();
        match self.inter_broker_name {
            Some(_) if self.inter_broker_protocol_is_set => {
                let reason = format!("only one of {NAME} and {PROTOCOL} may be set");
                Err(Fault { name: NAME, reason })
            }
            Some(name) => match advertised().find(|listener| listener.name == ListenerName::new(name)) {
                Some(listener) => Ok(listener.name.clone()),
                None => {
                    let reason = format!("not an advertised listener; wanted one of: {}", names.join(", "));
                    Err(Fault { name: NAME, reason })
                }
            },
            None if self.inter_broker_protocol != "PLAINTEXT" => {
                let reason =
                    "kuring speaks PLAINTEXT only: serving it so would leave the brokers' traffic open";
                Err(Fault { name: PROTOCOL, reason: reason.to_owned() })
            }
            // As Kafka: the listener that is named like the protocol.
            None => match advertised().find(|listener| listener.name.as_str() == "PLAINTEXT") {
                Some(listener) => Ok(listener.name.clone()),
                None => {
                    let reason = format!(
                        "not set, and no advertised listener is named PLAINTEXT; wanted one of: {}",
                        names.join(", ")
                    );
                    Err(Fault { name: NAME, reason })
                }
            },
        }
    }
}

fn protocol_of(
    protocols: &[(ListenerName, String)],
    property: &'static str,
    name: &ListenerName,
) -> Result<SecurityProtocol, Fault> {
    // The last entry wins, as in a Java map.
    match protocols.iter().rev().find(|(listener, _)| listener == name) {
        Some((_, protocol)) if protocol == "PLAINTEXT" => Ok(SecurityProtocol::Plaintext),
        Some((_, protocol)) => {
            let reason = format!(
                "listener {name} is {protocol}; kuring speaks PLAINTEXT only yet, and serving it so would \
                 leave the broker open"
            );
            Err(Fault { name: property, reason })
        }
        None => {
            let reason = format!(
                "no protocol is known for listener {name}; add {name}:PLAINTEXT to \
                 listener.security.protocol.map"
            );
            Err(Fault { name: property, reason })
        }
    }
}

type NamedEndpoint = (ListenerName, Endpoint);

fn named_endpoints(property: &'static str, texts: &[String]) -> Result<Vec<NamedEndpoint>, Fault> {
    let parse = |text: &String| {
        parse_endpoint(text).ok_or_else(|| Fault {
            name: property,
            reason: format!(
                "{text:?} is not a listener; wanted: NAME://host:port with a port from 0 to 65535"
            ),
        })
    };
    texts.iter().map(parse).collect()
}

/// `NAME://host:port`, the host perhaps empty or an IPv6 address in brackets.
fn parse_endpoint(text: &str) -> Option<NamedEndpoint> {
    let (name, address) = text.trim().split_once("://")?;
    let (host, port) = address.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.strip_suffix(']')?,
        None => host,
    };
    let is_host_letter = |letter: char| letter.is_ascii_alphanumeric() || "-%._:".contains(letter);
    if name.is_empty() || !host.chars().all(is_host_letter) {
        return None;
    }
    Some((ListenerName::new(name), Endpoint { host: host.to_owned(), port: port.parse().ok()? }))
}

/// Names differ; ports differ too, except 0 and a pair of an IPv4 and an IPv6 address (KIP-797).
fn check_distinct(property: &'static str, endpoints: &[NamedEndpoint], ports: bool) -> Result<(), Fault> {
    for (index, (name, endpoint)) in endpoints.iter().enumerate() {
        for (other_name, other) in &endpoints[..index] {
            if name == other_name {
                return Err(Fault { name: property, reason: format!("the name {name} appears twice") });
            }
            if ports
                && endpoint.port != 0
                && endpoint.port == other.port
                && !are_two_families(endpoint, other)
            {
                let reason = format!("{other_name} and {name} have the same port {}", endpoint.port);
                return Err(Fault { name: property, reason });
            }
        }
    }
    Ok(())
}

fn are_two_families(one: &Endpoint, other: &Endpoint) -> bool {
    let family =
        |endpoint: &Endpoint| endpoint.host.parse().map(|address: std::net::IpAddr| address.is_ipv4());
    matches!((family(one), family(other)), (Ok(one), Ok(other)) if one != other)
}

fn check_routable(endpoint: &Endpoint, is_set: bool) -> Result<(), Fault> {
    if endpoint.host != "0.0.0.0" && endpoint.host != "::" {
        return Ok(());
    }
    let host = &endpoint.host;
    let reason = match is_set {
        true => format!("no client can connect to {host}; wanted: a name or address of this machine"),
        false => format!(
            "not set, and no client can connect to the {host} of listeners; wanted: a name or address of \
             this machine"
        ),
    };
    Err(Fault { name: "advertised.listeners", reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT";

    fn list(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    fn check(
        listeners: &str,
        advertised: Option<&str>,
        map: Option<&str>,
        controllers: &str,
    ) -> Result<Listeners, String> {
        let controller_names = if controllers.is_empty() { Vec::new() } else { list(controllers) };
        ListenerTexts {
            listeners: &list(listeners),
            advertised: advertised.map(list).as_deref(),
            protocol_map: map.unwrap_or(MAP),
            protocol_map_is_set: map.is_some(),
            controller_names: &controller_names,
            inter_broker_name: None,
            inter_broker_protocol: "PLAINTEXT",
            inter_broker_protocol_is_set: false,
            is_controller: true,
            is_broker: true,
        }
        .check()
        .map_err(|fault| format!("{}: {}", fault.name, fault.reason))
    }

    fn fault(listeners: &str, advertised: Option<&str>, map: Option<&str>) -> String {
        match check(listeners, advertised, map, "") {
            Ok(_) => "none".to_owned(),
            Err(fault) => fault,
        }
    }

    #[test]
    fn a_listener_without_advertisement_is_told_as_it_listens() {
        let checked = check("plaintext://127.0.0.1:9092", None, None, "").ok().unwrap();
        let listener = &checked.listeners[0];
        assert_eq!(listener.name.as_str(), "PLAINTEXT");
        assert_eq!(
            listener.advertised_endpoint(9092, "box"),
            Some(Endpoint { host: "127.0.0.1".into(), port: 9092 })
        );
        assert_eq!(checked.inter_broker, listener.name);
    }

    #[test]
    fn no_host_is_told_as_the_machines_name_and_port_0_as_the_bound_one() {
        let checked = check("PLAINTEXT://:0", None, None, "").ok().unwrap();
        let told = checked.listeners[0].advertised_endpoint(41234, "box");
        assert_eq!(told, Some(Endpoint { host: "box".into(), port: 41234 }));
    }

    #[test]
    fn controller_listeners_stand_apart_and_need_no_map_entry() {
        let checked = check("PLAINTEXT://:9092,CONTROLLER://:9093", None, None, "CONTROLLER").ok().unwrap();
        assert_eq!(checked.listeners.len(), 1);
        assert_eq!(checked.controller_listeners[0].port, 9093);
        assert!(checked.controller_listeners[0].advertised.is_none());
        assert!(check("PLAINTEXT://:9092", None, None, "CONTROLLER").is_err());
    }

    #[test]
    fn two_listeners_share_a_port_only_across_address_families() {
        let map = Some("A:PLAINTEXT,PLAINTEXT:PLAINTEXT");
        assert_eq!(fault("PLAINTEXT://127.0.0.1:9092,A://[::1]:9092", None, map), "none");
        assert!(fault("PLAINTEXT://:9092,A://:9092", None, map).contains("same port 9092"));
        assert!(fault("PLAINTEXT://:1,PLAINTEXT://:2", None, map).contains("appears twice"));
    }

    #[test]
    fn what_no_client_can_reach_is_refused() {
        assert!(fault("PLAINTEXT://0.0.0.0:9092", None, None).starts_with("advertised.listeners: not set"));
        assert!(fault("PLAINTEXT://:9092", Some("PLAINTEXT://0.0.0.0:9092"), None).contains("0.0.0.0"));
        assert_eq!(fault("PLAINTEXT://0.0.0.0:9092", Some("PLAINTEXT://kafka1:9092"), None), "none");
    }

    #[test]
    fn other_protocols_are_refused() {
        assert!(fault("SSL://:9092", None, None).contains("listener SSL is SSL"));
        assert!(fault("A://:9092", None, Some("A:SASL_PLAINTEXT")).contains("PLAINTEXT only"));
        assert!(fault("A://:9092", None, None).contains("add A:PLAINTEXT"));
    }

    #[test]
    fn texts_that_are_no_endpoints_are_refused() {
        for text in [
            "localhost:9092",
            "PLAINTEXT://h:x",
            "PLAINTEXT://:70000",
            "PLAINTEXT://:-1",
            "://h:1",
            "A://a b:1",
        ] {
            assert!(fault(text, None, None).contains("is not a listener"), "{text}");
        }
    }

    #[test]
    fn advertised_names_must_be_listeners() {
        let map = Some("A:PLAINTEXT,PLAINTEXT:PLAINTEXT");
        assert!(fault("PLAINTEXT://:9092", Some("A://h:1"), map).contains("A is not in listeners"));
    }
}
