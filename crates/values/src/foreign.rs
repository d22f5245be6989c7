//! Values whose contents only a module knows.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// A value of a module's data type.
///
/// The module changes it through a pointer that it holds. A handle is therefore no copy of the value's present state:
/// what has to outlast the next change is serialised by the module itself.
pub trait ForeignValue: Any + Send + Sync + Debug {
    /// Returns the name of its type: nine characters.
    fn type_name(&self) -> &'static str;

    /// Notes that the value is no longer the value of this key, because the key was deleted or got another value. The
    /// module is told in time; nothing of it runs in this call.
    fn note_unlinked(self: Arc<Self>, db: u32, key: &[u8]);
}

impl dyn ForeignValue {
    /// Returns the value as the type `T` that implements it; `None` if it is of another one.
    pub fn downcast<T: ForeignValue>(self: Arc<Self>) -> Option<Arc<T>> {
        let any: Arc<dyn Any + Send + Sync> = self;
        any.downcast().ok()
    }

    /// Returns a reference to the value as the type `T` that implements it; `None` if it is of another one.
    pub fn downcast_ref<T: ForeignValue>(&self) -> Option<&T> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }
}
