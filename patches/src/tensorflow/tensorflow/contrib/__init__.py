"""Of what TensorFlow 1 had here, Large Model Support: ``from tensorflow.contrib.lms import LMS``."""
