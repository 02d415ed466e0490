"""Everything device specific: the native CPU kernels, their binding, and the choice between them and plain torch.

``native.py`` binds the C++ library, ``gradients.py`` makes its functions differentiable to any order,
``plain.py`` holds the building blocks of the plain-torch path, which runs on every device.
"""

from structattn.kernels.backend import backend, native_serves, selected_backend

__all__ = ["backend", "native_serves", "selected_backend"]
