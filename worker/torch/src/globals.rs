//! What a pickle may name: all that tensors are made of. Nothing is looked up by these names and
//! nothing is called; each stands for something that the machine does itself.

use crate::dtype::Dtype;

/// A name that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Global {
    OrderedDict,
    /// Makes a tensor of a storage that has a type.
    Tensor,
    /// The same of one that has none, the tensor's being said.
    TensorOfDtype,
    /// A tensor that is trained.
    Parameter,
    /// The same with what somebody has noted of it.
    ParameterWithState,
    /// A storage, of elements of a type or of bytes.
    Storage(Option<Dtype>),
    Dtype(Dtype),
}

impl Global {
    pub(crate) fn find(module: &str, name: &str) -> Option<Self> {
        match (module, name) {
            ("collections", "OrderedDict") => Some(Self::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Some(Self::Tensor),
            ("torch._utils", "_rebuild_tensor_v3") => Some(Self::TensorOfDtype),
            ("torch._utils", "_rebuild_parameter") => Some(Self::Parameter),
            ("torch._utils", "_rebuild_parameter_with_state") => Some(Self::ParameterWithState),
            ("torch.storage", "UntypedStorage") => Some(Self::Storage(None)),
            ("torch", name) => {
                let storage = Dtype::of_storage(name).map(|dtype| Self::Storage(Some(dtype)));
                storage.or_else(|| Dtype::called(name).map(Self::Dtype))
            }
            _ => None,
        }
    }
}
