// No first-run pages, no reports, no updates.
pref("app.update.enabled", false);
pref("app.donation.eoy.version.viewed", 999);
pref("browser.startup.homepage_override.mstone", "ignore");
pref("datareporting.policy.dataSubmissionEnabled", false);
pref("datareporting.policy.dataSubmissionPolicyBypassNotification", true);
pref("mail.provider.suppress_dialog_on_startup", true);
pref("mail.rights.version", 1);
pref("mail.shell.checkDefaultClient", false);
pref("mail.spotlight.firstRunDone", true);
pref("mailnews.start_page.enabled", false);
pref("mailnews.start_page_override.mstone", "ignore");
pref("toolkit.cosmeticAnimations.enabled", false);
pref("ui.caretBlinkTime", 0);
pref("ui.prefersReducedMotion", 1);
