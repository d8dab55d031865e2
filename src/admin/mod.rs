//! Metrics, health and a console over HTTP: empty until they are built.
