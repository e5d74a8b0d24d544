//! A node: the one port, its carriers, principals, authorisation, and the drivers of machines.
