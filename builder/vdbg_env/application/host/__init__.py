"""Operations on this host: doctor, triggering dumps, stored dumps."""
