//! Passing device calls on: what decorators of a [`crate::device::Device`] have in common.

/// Inside an `impl Device`: the named methods call the same method of a field that is, or points to, a device.
///
/// ```
/// # use kernels::device::*;
/// # use kernels::source::KernelSpec;
/// /// Gives no memory back.
/// struct Hoarder {
///     inner: DeviceRef,
/// }
///
/// impl Device for Hoarder {
///     fn free(&self, _ptr: DevicePtr, _stream: StreamId) -> DeviceResult<()> {
///         Ok(())
///     }
///
///     kernels::forward_device! { inner:
///         info create_stream destroy_stream alloc copy_to_device copy_to_host copy_on_device memset load_kernel launch
///         launch_counts create_event destroy_event record_event wait_event elapsed_ms begin_capture end_capture
///         launch_graph destroy_graph pool reset_high_water synchronize
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_device {
    ($inner:tt: $($method:ident)*) => {
        $($crate::forward_device! { @ $inner $method })*
    };
    (@ $inner:tt info) => { $crate::forward_device! { @@ $inner info() -> $crate::device::DeviceInfo } };
    (@ $inner:tt create_stream) => {
        $crate::forward_device! { @@ $inner create_stream() => $crate::device::StreamId }
        $crate::forward_device! { @@ $inner create_background_stream() => $crate::device::StreamId }
    };
    (@ $inner:tt destroy_stream) => {
        $crate::forward_device! { @@ $inner destroy_stream(stream: $crate::device::StreamId) => () }
    };
    (@ $inner:tt alloc) => {
        $crate::forward_device! {
            @@ $inner alloc(bytes: u64, stream: $crate::device::StreamId) => $crate::device::DevicePtr
        }
    };
    (@ $inner:tt free) => {
        $crate::forward_device! {
            @@ $inner free(ptr: $crate::device::DevicePtr, stream: $crate::device::StreamId) => ()
        }
    };
    (@ $inner:tt copy_to_device) => {
        $crate::forward_device! {
            @@ $inner copy_to_device(
                dst: $crate::device::DevicePtr, src: &[u8], stream: $crate::device::StreamId
            ) => ()
        }
    };
    (@ $inner:tt copy_to_host) => {
        $crate::forward_device! {
            @@ $inner copy_to_host(
                dst: &mut [u8], src: $crate::device::DevicePtr, stream: $crate::device::StreamId
            ) => ()
        }
    };
    (@ $inner:tt copy_on_device) => {
        $crate::forward_device! {
            @@ $inner copy_on_device(
                dst: $crate::device::DevicePtr, src: $crate::device::DevicePtr, bytes: u64,
                stream: $crate::device::StreamId
            ) => ()
        }
    };
    (@ $inner:tt memset) => {
        $crate::forward_device! {
            @@ $inner memset(
                dst: $crate::device::DevicePtr, value: u8, bytes: u64, stream: $crate::device::StreamId
            ) => ()
        }
    };
    (@ $inner:tt load_kernel) => {
        $crate::forward_device! {
            @@ $inner load_kernel(spec: &$crate::source::KernelSpec) => $crate::device::KernelId
        }
    };
    (@ $inner:tt launch) => {
        $crate::forward_device! {
            @@ $inner launch(
                kernel: $crate::device::KernelId, config: $crate::device::LaunchConfig, params: &[u8],
                stream: $crate::device::StreamId
            ) => ()
        }
    };
    (@ $inner:tt launch_counts) => {
        $crate::forward_device! { @@ $inner launch_counts() -> Vec<(String, u64)> }
    };
    (@ $inner:tt create_event) => { $crate::forward_device! { @@ $inner create_event() => $crate::device::EventId } };
    (@ $inner:tt destroy_event) => {
        $crate::forward_device! { @@ $inner destroy_event(event: $crate::device::EventId) => () }
    };
    (@ $inner:tt record_event) => {
        $crate::forward_device! {
            @@ $inner record_event(event: $crate::device::EventId, stream: $crate::device::StreamId) => ()
        }
    };
    (@ $inner:tt wait_event) => {
        $crate::forward_device! {
            @@ $inner wait_event(stream: $crate::device::StreamId, event: $crate::device::EventId) => ()
        }
    };
    (@ $inner:tt elapsed_ms) => {
        $crate::forward_device! {
            @@ $inner elapsed_ms(start: $crate::device::EventId, end: $crate::device::EventId) => f32
        }
    };
    (@ $inner:tt begin_capture) => {
        $crate::forward_device! { @@ $inner begin_capture(stream: $crate::device::StreamId) => () }
    };
    (@ $inner:tt end_capture) => {
        $crate::forward_device! {
            @@ $inner end_capture(stream: $crate::device::StreamId) => $crate::device::GraphId
        }
    };
    (@ $inner:tt launch_graph) => {
        $crate::forward_device! {
            @@ $inner launch_graph(graph: $crate::device::GraphId, stream: $crate::device::StreamId) => ()
        }
    };
    (@ $inner:tt destroy_graph) => {
        $crate::forward_device! { @@ $inner destroy_graph(graph: $crate::device::GraphId) => () }
    };
    (@ $inner:tt pool) => { $crate::forward_device! { @@ $inner pool() => $crate::device::PoolBytes } };
    (@ $inner:tt reset_high_water) => { $crate::forward_device! { @@ $inner reset_high_water() => () } };
    (@ $inner:tt synchronize) => {
        $crate::forward_device! { @@ $inner synchronize(stream: $crate::device::StreamId) => () }
    };
    (@@ $inner:tt $method:ident($($name:ident: $type:ty),*) => $value:ty) => {
        $crate::forward_device! {
            @@ $inner $method($($name: $type),*) -> $crate::device::DeviceResult<$value>
        }
    };
    (@@ $inner:tt $method:ident($($name:ident: $type:ty),*) -> $value:ty) => {
        fn $method(&self, $($name: $type),*) -> $value {
            self.$inner.$method($($name),*)
        }
    };
}
