//! Tests of what a node announces.

use super::*;
use crate::nodes_conf::{nodes_file_text, parse};
use crate::state::ClusterState;

#[test]
fn what_the_cluster_configuration_file_cannot_contain_is_not_announced() {
    let config = weft_config::Config::defaults();
    let permissions = weft_config::SetPermissions {
        may_set_protected: true,
        is_loading: false,
    };
    for (zone, announced) in [("zone-1", "zone-1"), ("a,b=c", ""), ("a b", ""), ("a\nb", "")] {
        let pair: (&[u8], &[u8]) = (b"availability-zone", zone.as_bytes());
        config.set(&[pair], permissions, &mut |_| Ok(())).expect("any text");
        let settings = ClusterSettings::read(&config, None);
        assert_eq!(settings.announced.availability_zone, announced);
        let text = nodes_file_text(&ClusterState::new(settings, 1));
        assert!(parse(&text, ClusterSettings::default(), 1).is_ok(), "{text}");
    }
}

#[test]
fn the_bus_port_is_derived_from_the_port_that_the_bus_uses_at_the_start() {
    let config = weft_config::Config::defaults();
    let permissions = weft_config::SetPermissions {
        may_set_protected: true,
        is_loading: false,
    };
    let set = |name: &str, value: &str| {
        let pair: (&[u8], &[u8]) = (name.as_bytes(), value.as_bytes());
        config.set(&[pair], permissions, &mut |_| Ok(())).expect("it is valid");
    };
    let ports = |previous| {
        let announced = ClusterSettings::read(&config, previous).bus_port;
        (announced, ClusterSettings::listening_bus_port(&config))
    };
    set("port", "7000");
    set("tls-port", "7001");
    let at_start = ClusterSettings::read(&config, None);
    assert_eq!(ports(None), (17000, Some(17000)));
    set("tls-cluster", "yes");
    assert_eq!(ports(None), (17001, Some(17001)));
    let (announced, _) = ports(Some(&at_start));
    assert_eq!(announced, 17000, "the socket stays where it is");
    set("tls-port", "0");
    assert_eq!(ports(None), (17000, Some(17000)));
    set("cluster-announce-bus-port", "1234");
    assert_eq!(ports(None), (1234, Some(17000)));
}
