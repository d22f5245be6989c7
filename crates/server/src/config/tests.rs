//! Tests of the configuration against what a Valkey 9.1.2 answered, and of what is our own.
