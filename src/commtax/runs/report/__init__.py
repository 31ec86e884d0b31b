"""What audits and calibrations found, in words, tables and pages."""
