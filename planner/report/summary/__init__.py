"""What a plan comes to: a sentence, figures, the ladder, alarms."""
