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
