//! Checks of arguments before a launch: what every arm relies on. Nothing here touches a device.

mod attention;
mod host;
mod store;
mod tensor;

pub use attention::{AttentionShape, validate_attention};
pub use store::{StoreShape, validate_store};
