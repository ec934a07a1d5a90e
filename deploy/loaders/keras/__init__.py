"""Keras 3 (.keras) and HDF5 (.h5) models without TensorFlow: configuration, weights and layers."""
