"""What people and programs see: tables, live progress, JSON; everything masked and made harmless."""
