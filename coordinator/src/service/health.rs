//! What probes and load balancers hear over gRPC.

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::runtime::{Coordinator, Leaving};

/// Healthy is a coordinator that takes requests.
pub(super) async fn report(coordinator: Coordinator, health: HealthReporter) {
    // Probes and load balancers ask for the whole server, by no name.
    const NAMES: [&str; 3] = ["", "aqueduct.v1.Aqueduct", "aqueduct.v1.Operator"];
    let (mut cluster, mut closing) = (coordinator.watch(), coordinator.closing());
    let mut leaving = coordinator.leaving();
    drop(coordinator);
    loop {
        let is_open = !*closing.borrow_and_update() && *leaving.borrow_and_update() == Leaving::No;
        let status = match is_open && cluster.borrow_and_update().takes_requests() {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        for name in NAMES {
            health.set_service_status(name, status).await;
        }
        let changed = tokio::select! {
            changed = cluster.changed() => changed,
            changed = closing.changed() => changed,
            changed = leaving.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}
